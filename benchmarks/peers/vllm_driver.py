"""vLLM's CPU build. Settings are arguments of its LLM class; `processes`: whether the engine gets one of its own."""

from __future__ import annotations

import os
from typing import Any

import turns


class Engine:
    def __init__(self, options: Any) -> None:
        settings = dict(options.settings)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if settings.pop("processes", False) else "0"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(settings.pop("kv_gib", 4)))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", _cores())
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        import vllm
        from vllm.sampling_params import RequestOutputKind

        self._vllm, self._delta = vllm, RequestOutputKind.DELTA
        self.version = vllm.__version__
        self._engine = vllm.LLM(model=options.model, dtype="bfloat16", skip_tokenizer_init=True, **settings).llm_engine
        self._round = 0
        self._live = 0

    def add(self, number: int, prompt: list[int], output: int) -> None:
        self._round += number == 0
        params = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False, output_kind=self._delta
        )
        self._engine.add_request(f"{self._round}-{number}", {"prompt_token_ids": prompt}, params)

    def step(self) -> list[tuple[int, int]]:
        return [(int(one.request_id.split("-")[1]), len(one.outputs[0].token_ids)) for one in self._engine.step()]


def _cores() -> str:
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))


def start(options: Any) -> tuple[Engine, dict[str, Any]]:
    engine = Engine(options)
    return engine, {"engine": "vllm", "version": engine.version}


if __name__ == "__main__":
    turns.serve(start)
