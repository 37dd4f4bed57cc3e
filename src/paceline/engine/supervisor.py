"""Keeps one engine process running: starts it, replaces it when it dies or hangs, and ends it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from paceline.engine import messages
from paceline.engine.client import EngineProcess
from paceline.engine.config import EngineConfig
from paceline.engine.crashes import Crashes, how_it_ended
from paceline.errors import EngineDeadError, PacelineError

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

END_WAIT = 5.0  # seconds an engine process gets to end after it was told to
SAVE_WAIT = 40.0  # more seconds where it writes cached KV to disk first


class Owner(Protocol):
    """Who the supervisor works for."""

    def take(self, message: messages.FromEngine) -> None:
        """The process said this."""

    def process_gone(self) -> None:
        """The process has ended: nothing that was asked of it will be answered."""

    def crashed(self, how: str) -> int:
        """The process died, and a new one will be started. Returns for how many requests."""
        ...

    def over(self, error: PacelineError) -> None:
        """There is no process, and there will be none."""


class Supervisor:
    """Belongs to the event loop that started it.

    Attributes:
        up: the current process is ready.
        failure: why the engine is dead, or could not start.
        started: set when the first start is over, well or not.
        crashes: of processes that had been started well.
    """

    def __init__(self, config: EngineConfig, owner: Owner) -> None:
        self.config = config
        self.up = False
        self.failure: PacelineError | None = None
        self.started = asyncio.Event()
        self.crashes = Crashes(config.max_restarts, config.restart_window)
        self._owner = owner
        self._process: EngineProcess | None = None
        self._stopping = False
        self._ended = 0.0  # when the last process did
        self._hung = False  # the process did not answer and was ended for it
        self._task = asyncio.create_task(self._supervise(), name="paceline engine supervisor")

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def restarts(self) -> int:
        """How often a new process had to be started."""
        return self.crashes.total - (1 if self.crashes.too_many else 0)

    def ready(self) -> None:
        """The process has said so."""
        self.up = True
        if self.started.is_set():
            logger.warning("the engine is ready again, %.1f seconds after it ended", time.monotonic() - self._ended)
        self.started.set()

    def send(self, message: messages.ToEngine) -> None:
        """To a process that is not ready it is lost."""
        if self.up and self._process is not None:
            self._process.send(message)

    async def ask(self, answer: Coroutine[Any, Any, Answer], patience: float | None) -> Answer | None:
        """The process's answer. None: it gave none within `patience` seconds, and is ended to be replaced."""
        asked = self._process
        try:
            return await asyncio.wait_for(answer, patience)
        except asyncio.TimeoutError:
            if asked is not None and asked is self._process and self.up:
                logger.error("the engine has not answered for %g seconds (--watchdog-timeout) and is ended", patience)
                self._hung = True
                asked.kill()
            return None

    async def _supervise(self) -> None:
        """Keep a process running until the end."""
        try:
            while not self._stopping and self.failure is None:
                self._process = await EngineProcess.start(self.config)
                status = await self._process.run(self._owner.take)
                was_up, self.up = self.up, False
                self._owner.process_gone()
                if not self._stopping and self.failure is None:
                    self._note_crash(status, was_up)
        except Exception as error:
            logger.exception("the engine's supervisor failed")
            self.failure = EngineDeadError(f"the engine cannot be run: {error}")
        finally:
            self.up = False
            self.started.set()
            self._owner.over(self.failure or EngineDeadError("the engine was shut down"))

    def _note_crash(self, status: int, was_up: bool) -> None:
        how, self._hung = "it did not answer" if self._hung else how_it_ended(status), False
        if not self.started.is_set():
            self.failure = EngineDeadError(
                f"the engine process ended during its start ({how}); its own messages are on standard error"
            )
            return
        self._ended = time.monotonic()
        self.crashes.note(self._ended)
        if self.crashes.too_many:
            self.failure = EngineDeadError(
                f"the engine process ended {len(self.crashes)} times within {self.config.restart_window:g} seconds "
                f"(last with {how}); giving up"
            )
            logger.error("%s", self.failure)
            return
        requests = self._owner.crashed(how)
        stage = "while serving" if was_up else "while starting again"
        logger.warning("the engine process ended %s (%s); starting a new one for %d requests", stage, how, requests)

    async def stop(self) -> None:
        """End the process, which may save what it has cached first."""
        self._stopping = True
        if self.up and self._process is not None:
            await self._process.stop(END_WAIT + (SAVE_WAIT if self.config.disk_kv else 0.0))
        else:
            self._task.cancel()  # a process that is only starting
        await asyncio.wait({self._task})

    async def kill(self) -> None:
        """End the process now."""
        self._stopping = True
        self._task.cancel()
        await asyncio.wait({self._task})
