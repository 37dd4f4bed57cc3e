"""Runs the prompts of one HTTP request on the engine as one stream, and measures it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from paceline.core.params import SamplingParams
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.outputs import CompletionResult, RequestOutput
from paceline.errors import RequestError
from paceline.server.metrics import OTHERS, Metrics, RequestWatch
from paceline.server.prompts import PromptTokens

Output = tuple[int, RequestOutput]  # (index of the prompt, what is new)


@dataclass
class Generation:
    """All that one HTTP request wants generated."""

    engine: AsyncEngine
    metrics: Metrics
    id: str
    prompts: Sequence[PromptTokens]
    params: SamplingParams
    priority: int = 0
    tenant: str = "default"
    owner: str | None = None
    cache_salt: str | None = None
    queue_timeout: float | None = None
    timeout: float | None = None
    expired: str = ""  # which time was up, in words, when one was after the start
    watches: list[RequestWatch] = field(default_factory=list)

    async def stream(self) -> AsyncGenerator[Output, None]:
        """Outputs as they are made, those of several prompts interleaved. Closing it aborts everything."""
        self.watches = [RequestWatch(self.metrics, prompt, self.params.n, self._known()) for prompt in self.prompts]
        if len(self.prompts) == 1:
            async with aclosing(self._one(0)) as outputs:
                async for output in outputs:
                    yield 0, output
            return
        queue: asyncio.Queue[Output | BaseException | None] = asyncio.Queue(maxsize=64)
        pumps = [asyncio.create_task(self._pump(index, queue)) for index in range(len(self.prompts))]
        try:
            open_streams = len(pumps)
            while open_streams:
                item = await queue.get()
                if item is None:
                    open_streams -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def check_in_time(self) -> None:
        """RequestError (504) when some of it was cut off because its time was up."""
        if self.expired:
            raise RequestError(self.expired, code="request_expired", status=504)

    def _known(self) -> str:
        """The tenant as metrics show it: those that are not in the operator's file are one, as there may be any."""
        return self.tenant if self.engine.tenants.is_named(self.tenant) else OTHERS

    async def whole(self) -> list[CompletionResult]:
        """Everything, one result per prompt."""
        results = [
            CompletionResult.empty(self.id, prompt.text, prompt.token_ids, self.params.n) for prompt in self.prompts
        ]
        async with aclosing(self.stream()) as outputs:
            async for index, output in outputs:
                results[index].add(output)
        return results

    async def _one(self, index: int) -> AsyncGenerator[RequestOutput, None]:
        watch = self.watches[index]
        suffix = f"-{index}" if len(self.prompts) > 1 else ""
        stream: Any = self.engine.generate(
            self.prompts[index].token_ids,
            self.params,
            request_id=self.id + suffix,
            priority=self.priority,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            queue_timeout=self.queue_timeout,
            timeout=self.timeout,
            owner=self.owner,
        )
        try:
            async with aclosing(stream):
                async for output in stream:
                    watch.note(output)
                    self.expired = output.expired or self.expired
                    yield output
        except RequestError as error:
            watch.refused(error)
            raise
        finally:
            watch.close()

    async def _pump(self, index: int, queue: asyncio.Queue[Output | BaseException | None]) -> None:
        try:
            async with aclosing(self._one(index)) as outputs:
                async for output in outputs:
                    await queue.put((index, output))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)


@dataclass
class Usage:
    """Tokens of one HTTP request, as clients see them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    @classmethod
    def of(cls, results: Sequence[CompletionResult], *, count_generated: bool = True) -> Usage:
        generated = sum(len(c.token_ids) for result in results for c in result.completions)
        return cls(
            prompt_tokens=sum(len(result.prompt_token_ids) for result in results),
            completion_tokens=generated if count_generated else 0,
            cached_tokens=sum(result.cached_tokens for result in results),
        )


class RunningUsage:
    """Usage of a stream so far."""

    def __init__(self, prompts: Sequence[PromptTokens]) -> None:
        self._prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._generated = [0] * len(prompts)
        self._cached = [0] * len(prompts)

    def note(self, index: int, output: RequestOutput) -> None:
        self._generated[index] = output.generated_tokens
        self._cached[index] = output.cached_tokens

    def now(self) -> Usage:
        return Usage(self._prompt_tokens, sum(self._generated), sum(self._cached))
