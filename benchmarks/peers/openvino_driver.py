"""OpenVINO GenAI's continuous batching. Settings are fields of SchedulerConfig, and `properties` of the CPU device."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
import turns


class Engine:
    def __init__(self, options: Any) -> None:
        settings = dict(options.settings)
        properties = {"INFERENCE_NUM_THREADS": options.threads, **settings.pop("properties", {})}
        config = genai.SchedulerConfig()
        for name, value in settings.items():
            setattr(config, name, value)
        self._pipeline = genai.ContinuousBatchingPipeline(options.model, config, "CPU", properties)
        self._handles: dict[int, Any] = {}

    def add(self, number: int, prompt: list[int], output: int) -> None:
        wanted = genai.GenerationConfig(max_new_tokens=output, ignore_eos=True, do_sample=False)
        ids = openvino.Tensor(np.asarray([prompt], np.int64))
        self._handles[number] = self._pipeline.add_request(number, ids, wanted)

    def step(self) -> list[tuple[int, int]]:
        self._pipeline.step()
        found = []
        for number, handle in list(self._handles.items()):
            if handle.can_read():
                found.append((number, sum(len(one.generated_ids) for one in handle.read().values())))
        if not self._pipeline.has_non_finished_requests():
            self._handles.clear()
        return found


def start(options: Any) -> tuple[Engine, dict[str, Any]]:
    return Engine(options), {"engine": "openvino-genai", "version": genai.__version__}


if __name__ == "__main__":
    turns.serve(start)
