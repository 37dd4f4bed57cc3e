"""An engine process with an event loop of its own, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from paceline.core.params import SamplingParams
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.config import EngineConfig
from paceline.engine.outputs import CompletionResult

CONFIG = EngineConfig(dtype="float32", device="cpu", threads=1, num_blocks=256, max_model_len=1024, seed=1)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, top_p=0.95, seed=7, max_tokens=24, ignore_eos=True)
PROMPT = "The three most important things in life are"


class Running:
    """An engine with the event loop it lives on."""

    def __init__(self, config: EngineConfig) -> None:
        self.loop = asyncio.new_event_loop()
        self.stages: list[str] = []
        self.engine: AsyncEngine = self(AsyncEngine.start(config, self.stages.append))

    def __call__(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 240))

    def close(self) -> None:
        self(self.engine.shutdown(0))
        self.loop.close()


async def collect(engine: AsyncEngine, prompt, params: SamplingParams, **options: Any) -> CompletionResult:
    result = None
    async for output in engine.generate(prompt, params, **options):
        if result is None:
            result = CompletionResult.empty(output.request_id, None, output.prompt_token_ids, params.n)
        result.add(output)
        assert output.finished == result.finished
    assert result is not None
    return result
