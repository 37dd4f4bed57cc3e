"""The engine as an asyncio program sees it: requests in, streams of tokens out, a process behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from paceline.core.params import SamplingParams
from paceline.engine.config import EngineConfig
from paceline.engine.outputs import RequestOutput

Progress = Callable[[str], None]


class AsyncEngine:
    """One engine process and the streams of everyone who talks to it. Belongs to the event loop that started it."""

    config: EngineConfig
    tokenizer: Any  # paceline.engine.tokenizer.Tokenizer: encode, decode, token_bytes, apply_chat_template, ...
    model_name: str  # the name clients use
    max_model_len: int
    vocab_size: int
    info: dict[str, Any]  # what the executor said of itself at start: num_blocks, dtype, device, notes, ...

    @classmethod
    async def start(cls, config: EngineConfig, progress: Progress | None = None) -> AsyncEngine:
        """Start the engine process and wait until it is ready.

        `progress` is called on the event loop with one line of text per stage of the start.
        Raises ConfigError or ModelError as the engine process met them; EngineDeadError if it ended silently.
        """
        raise NotImplementedError

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "default",
        cache_salt: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Deltas of one request as they are made (an async generator).

        Closing the iterator, or cancelling the task that awaits it, aborts the request within one step. A request
        whose reader is slow gets its deltas merged; memory stays bounded by the tokens generated.
        Raises (from the first `__anext__`) RequestError for what can never be served: empty prompt, token ids out of
        the vocabulary, prompt or prompt + max_tokens over the context (code "context_length_exceeded"), a duplicate
        request id; RequestError with status 500 and code "engine_error" when the engine failed on this request;
        EngineDeadError when the engine is gone for good or shutting down.
        """
        raise NotImplementedError

    async def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with finish_reason "abort". False if it is not known (or already over)."""
        raise NotImplementedError

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; long texts are encoded off the event loop's thread."""
        raise NotImplementedError

    async def stats(self) -> dict[str, Any]:
        """The scheduler's counters and gauges now (SchedulerStats as a dict) and `restarts`, `steps`, ..."""
        raise NotImplementedError

    @property
    def is_healthy(self) -> bool:
        """Whether requests are accepted and served: False while starting, restarting, draining or dead."""
        raise NotImplementedError

    async def shutdown(self, grace: float | None = None) -> None:
        """Stop cleanly: refuse new requests, give running ones `grace` seconds, abort the rest, end the process.

        `grace` None means `config.shutdown_grace`. Safe to call more than once.
        """
        raise NotImplementedError
