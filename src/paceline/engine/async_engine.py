"""The engine as an asyncio program sees it: requests in, streams of tokens out, a process behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from paceline.core.params import SamplingParams
from paceline.engine import messages
from paceline.engine.config import EngineConfig
from paceline.engine.door import Door
from paceline.engine.live_requests import LiveRequests
from paceline.engine.outputs import RequestOutput
from paceline.engine.pitfalls import Pitfalls
from paceline.engine.probation import CRASHES
from paceline.engine.questions import Questions
from paceline.engine.request_log import RequestLog
from paceline.engine.supervisor import Supervisor
from paceline.engine.tenants import read_tenants
from paceline.engine.tokenizer import Tokenizer, load_tokenizer
from paceline.errors import ConfigError, EngineDeadError, ModelError, PacelineError

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]
LiveReports = dict[int, dict[int, dict[str, Any]]]  # number of the request -> index of the sequence -> its report

LONG_TEXT = 4000  # characters from which on a text is encoded off the event loop's thread
LOOK_EVERY = 10.0  # seconds between looks at how the engine is


class AsyncEngine:
    """One engine process and the streams of everyone who talks to it. Belongs to the event loop that started it.

    **An engine crash is a preemption.** When the process dies, a new one is started, and every unfinished request is
    handed to it with its tokens so far and its seed; its stream goes on with the next token. After more than
    `config.max_restarts` crashes within `config.restart_window` seconds all streams raise EngineDeadError.

    Attributes:
        config: as given.
        tokenizer: encode, decode, token_bytes, apply_chat_template, ...
        model_name: the name clients use.
        max_model_len, vocab_size: of the loaded model.
        tenants: what the file of tenants says.
        died: set when the engine is gone for good.
        info: what the engine process said of itself when it was ready: num_blocks, dtype, device, description, ...
    """

    tokenizer: Tokenizer
    max_model_len: int
    vocab_size: int

    def __init__(self, config: EngineConfig) -> None:
        """Use `await AsyncEngine.start(config)`. ConfigError for a file of tenants that is wrong."""
        self.config = config
        self.model_name = config.model_name
        self.tenants = read_tenants(config.quotas)
        self.info: dict[str, Any] = {}
        self._progress: Progress | None = None
        self._door: Door
        self._supervisor: Supervisor
        self._closing = False  # no new requests
        self.died = asyncio.Event()  # set when the engine is gone for good though nobody wanted it to end
        self._questions = Questions()
        self._last_stats: dict[str, Any] = {}
        self.log = RequestLog(config.request_log_size)
        self.pitfalls = Pitfalls()
        self._live = LiveRequests(self._send, self.log, self.pitfalls)
        self._watch: asyncio.Task[None] | None = None
        self._tokenizer_task: asyncio.Task[Tokenizer] | None = None
        self._shutdown_task: asyncio.Task[None] | None = None

    # -- start ------------------------------------------------------------------------------------------------------

    @classmethod
    async def start(cls, config: EngineConfig, progress: Progress | None = None) -> AsyncEngine:
        """Start the engine process and wait until it is ready.

        `progress` is called on the event loop with one line of text per stage of the start.
        Raises ConfigError or ModelError as the engine process met them; EngineDeadError if it ended silently.
        """
        engine = cls(config)
        engine._progress = progress
        engine._supervisor = supervisor = Supervisor(config, engine)
        try:
            await supervisor.started.wait()
            if supervisor.failure is None:
                assert engine._tokenizer_task is not None
                engine.tokenizer = await engine._tokenizer_task
        except BaseException:
            await engine._kill()
            raise
        if supervisor.failure is not None:
            await engine._kill()
            raise supervisor.failure
        engine._progress = None
        engine._watch = asyncio.create_task(engine._look(), name="paceline watch")
        engine.vocab_size, engine.max_model_len = engine.info["vocab_size"], engine.info["max_model_len"]
        engine._door = Door(engine.tokenizer, engine.vocab_size, engine.max_model_len, config.seed)
        return engine

    # -- for the supervisor -----------------------------------------------------------------------------------------

    def process_gone(self) -> None:
        """Nothing that was asked of it will be answered."""
        self._questions.give_up()

    def crashed(self, how: str) -> int:
        """A new process will go on with what is unfinished; how many requests that are."""
        self.log.restarted()
        self._live.engine_died(how)
        return len(self._live)

    def over(self, error: PacelineError) -> None:
        """No process will ever go on with what is unfinished."""
        if self._watch is not None:
            self._watch.cancel()
        self._live.fail_all(error)
        if self._supervisor.failure is not None:
            self.died.set()

    # -- what the process says --------------------------------------------------------------------------------------

    def take(self, message: messages.FromEngine) -> None:
        """Act on a message of the process."""
        if isinstance(message, messages.StepOutput):
            for account in message.accounts:
                self.log.note(account)
            for output in message.outputs:
                self._live.take(output)
        elif isinstance(message, messages.Refused):
            self._live.refuse(message)
        elif isinstance(message, messages.Stats):
            self._last_stats = message.stats
            self._questions.answer(message.ticket, message.stats)
        elif isinstance(message, messages.Explained):
            self._questions.answer(message.ticket, message.requests)
        elif isinstance(message, messages.Progress):
            if self._progress is not None:
                self._progress(message.text)
        elif isinstance(message, messages.Resolved):
            if self._tokenizer_task is None:
                source = self.config.tokenizer or message.source
                load = asyncio.to_thread(load_tokenizer, source, self.config.chat_template)
                self._tokenizer_task = asyncio.create_task(load)
        elif isinstance(message, messages.Ready):
            self.info = message.info
            self._supervisor.ready()
            if self.tenants.path is not None:
                self._supervisor.send(messages.SetQuotas(self.tenants.quotas))
            self.pitfalls.serves(message.info)
            self._live.hand_over(one_by_one=len(self._supervisor.crashes) >= CRASHES)
        elif isinstance(message, messages.Failed):
            self._supervisor.failure = _failure(message)

    def _send(self, message: messages.ToEngine) -> None:
        self._supervisor.send(message)

    # -- requests ---------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "default",
        cache_salt: str | None = None,
        queue_timeout: float | None = None,
        timeout: float | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Deltas of one request as they are made (an async generator).

        Closing the iterator, or cancelling the task that awaits it, aborts the request within one step. A request
        whose reader is slow gets its deltas merged; memory stays bounded by the tokens generated.
        Raises (from the first `__anext__`) RequestError for what can never be served: empty prompt, token ids out of
        the vocabulary, prompt or prompt + max_tokens over the context (code "context_length_exceeded"), a duplicate
        request id; RequestError with status 500 and code "engine_error" when the engine failed on this request;
        EngineDeadError when the engine is gone for good or shutting down.

        `queue_timeout` and `timeout`, in seconds, default to the engine's. When the first is up before the request was
        started, or the second before it was: RequestError with status 408 and code "request_expired". When the second
        is up later, the stream ends with finish_reason "expired" and what was generated. RequestError with status 429
        and `retry_after`: the queue is full. `owner`: to whom `requests` tells of it, besides those who see all.
        """
        self._check_alive()
        tokens = await self.encode(prompt) if isinstance(prompt, str) else prompt
        self._check_alive()
        stream = self._door.admit(
            tokens,
            params,
            request_id=request_id,
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            queue_timeout=self.config.queue_timeout if queue_timeout is None else queue_timeout,
            timeout=self.config.request_timeout if timeout is None else timeout,
        )
        async with aclosing(self._live.read(stream, tenant, priority, owner)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with finish_reason "abort". False if it is not known (or already over)."""
        return self._live.abort(request_id)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; long texts are encoded off the event loop's thread."""
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    def _check_alive(self) -> None:
        if self._closing:
            raise EngineDeadError("the engine is shutting down")
        if self._supervisor.failure is not None:
            raise self._supervisor.failure

    def reload_tenants(self) -> None:
        """Read the file of tenants and their quotas again. ConfigError: it is wrong, and what was read before holds."""
        self.tenants = read_tenants(self.config.quotas)
        self._supervisor.send(messages.SetQuotas(self.tenants.quotas))

    # -- looking in, and the end ------------------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """The scheduler's gauges and totals now (SchedulerStats, flat), and `requests`, `restarts`, `healthy`.

        While a new engine process is starting: the last ones known.
        """
        if self._supervisor.up:
            ticket, answer = self._questions.ask(self._last_stats)
            self._supervisor.send(messages.AskStats(ticket))
            stats = await answer
        else:
            stats = self._last_stats
        own = {"requests": len(self._live), "restarts": self.restarts, "healthy": self.is_healthy}
        return {**stats, **own, "pitfalls": dict(self.pitfalls.counts)}

    async def explain(self, numbers: list[int] | None = None) -> LiveReports:
        """What the engine says of live requests, by number and index of the sequence: where their time went so far,
        and why they wait. Nothing while a new engine process is starting."""
        if not self._supervisor.up:
            return {}
        ticket, answer = self._questions.ask({})
        self._supervisor.send(messages.Explain(ticket, numbers))
        reports: LiveReports = await answer
        return reports

    async def _look(self) -> None:
        """Ask the engine now and then how it is: for pitfalls, and to replace a process that does not answer."""
        patience = self.config.watchdog_timeout or None
        while True:
            await asyncio.sleep(LOOK_EVERY if patience is None else min(LOOK_EVERY, patience))
            stats = await self._supervisor.ask(self.stats(), patience)
            if stats is not None:
                self.pitfalls.look(stats)

    @property
    def restarts(self) -> int:
        """How often a new process had to be started."""
        return self._supervisor.restarts

    @property
    def is_healthy(self) -> bool:
        """Whether requests are accepted and served: False while starting, restarting, draining or dead."""
        return self._supervisor.up and not self._closing and self._supervisor.failure is None

    @property
    def state(self) -> str:
        """In words, why it is not healthy; "ok" where it is."""
        if self._supervisor.failure is not None:
            return str(self._supervisor.failure)
        if self._closing:
            return "the server is shutting down: it finishes what it has and takes nothing new"
        return "ok" if self._supervisor.up else "the engine is starting again; requests wait for it"

    @property
    def engine_pid(self) -> int | None:
        """Process id of the current engine process."""
        return self._supervisor.pid

    async def shutdown(self, grace: float | None = None) -> None:
        """Stop cleanly: refuse new requests, give running ones `grace` seconds, abort the rest, end the process.

        `grace` None means `config.shutdown_grace`. May be called again: the first call's grace holds, unless a later
        one asks for 0 seconds, which ends the wait.
        """
        self._closing = True
        if self._shutdown_task is None:
            seconds = self.config.shutdown_grace if grace is None else grace
            self._shutdown_task = asyncio.create_task(self._shut_down(seconds))
        elif grace == 0:
            self._live.abort_all()
        await asyncio.shield(self._shutdown_task)

    async def _shut_down(self, grace: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._live.idle.wait(), grace)
        self._live.abort_all()
        await self._supervisor.stop()

    async def _kill(self) -> None:
        """End everything now, after a start that failed or was cancelled."""
        self._closing = True
        await self._supervisor.kill()
        if self._tokenizer_task is not None:
            self._tokenizer_task.cancel()
            await asyncio.gather(self._tokenizer_task, return_exceptions=True)


def _failure(message: messages.Failed) -> PacelineError:
    """The error as the engine process raised it."""
    if message.kind == "config":
        error = ConfigError(message.setting, message.value, message.allowed)
        error.args = (message.message,)
        return error
    return ModelError(message.message) if message.kind == "model" else EngineDeadError(message.message)
