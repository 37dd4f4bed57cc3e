"""The continuous batching of transformers. Settings are fields of its ContinuousBatchingConfig."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
import turns
from transformers.generation.configuration_utils import ContinuousBatchingConfig


class Engine:
    def __init__(self, options: Any) -> None:
        torch.set_num_threads(options.threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.bfloat16, attn_implementation="paged|sdpa"
        ).eval()
        self._config = ContinuousBatchingConfig(use_cuda_graph=False, **options.settings)

    def run(self, prompts: list[list[int]], outputs: list[int]) -> list[list[float]]:
        wanted = transformers.GenerationConfig(
            max_new_tokens=max(outputs), do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        stamps: list[list[float]] = [[] for _ in prompts]
        manager = self._model.init_continuous_batching(wanted, self._config)
        manager.start()
        try:
            begin, left = time.perf_counter(), sum(outputs)
            names = {
                manager.add_request(prompt, max_new_tokens=output, streaming=True): number
                for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
            }
            while left > 0:
                result = manager.get_result(timeout=1)
                if result is None:
                    continue
                number, now = names[result.request_id], time.perf_counter() - begin
                fresh = len(result.generated_tokens) - len(stamps[number])
                stamps[number] += [now] * fresh
                left -= fresh
        finally:
            manager.stop(block=True)
        return stamps


def start(options: Any) -> tuple[Engine, dict[str, Any]]:
    return Engine(options), {"engine": "transformers", "version": transformers.__version__}


if __name__ == "__main__":
    turns.serve(start)
