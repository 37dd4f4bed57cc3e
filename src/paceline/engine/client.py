"""The server's side of an engine process."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import zmq
import zmq.asyncio

from paceline.engine import messages
from paceline.engine.config import EngineConfig

# OpenMP reads this when the engine process loads torch. Its threads else spin for milliseconds at every wait, and where
# something else wants the cores (the server itself does) that slows a step many times over. A user's own setting wins.
_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}
_LAST_WORDS = 0.2  # seconds a process that ended may still be heard


class EngineProcess:
    """One engine process, from start to end; a new one is a new object with a socket of its own, so that nothing an
    old process said is ever taken for the new one's."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        context: zmq.asyncio.Context,
        socket: zmq.asyncio.Socket,
        folder: Path,
    ) -> None:
        self._process = process
        self._context = context
        self._socket = socket
        self._folder = folder

    @classmethod
    async def start(cls, config: EngineConfig) -> EngineProcess:
        """Start the process; it says Ready, or Failed and ends, later."""
        folder = Path(tempfile.mkdtemp(prefix="paceline-"))  # mode 0700: nobody else can connect
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.DEALER)
        try:
            for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
                socket.set(option, 0)
            endpoint = f"ipc://{folder}/engine"
            socket.bind(endpoint)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "paceline.engine.process",
                endpoint,
                stdin=asyncio.subprocess.PIPE,
                env={**_ENVIRONMENT, **os.environ},
                stdout=sys.stderr.fileno() if _has_fileno(sys.stderr) else None,
            )
        except BaseException:
            socket.close()
            context.term()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        started = cls(process, context, socket, folder)
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            with suppress(ConnectionError):
                await process.stdin.drain()
        except BaseException:
            await started.close()
            raise
        return started

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: messages.ToEngine) -> None:
        """Queue a message; never waits. To a process that has ended it is lost."""
        if not self._socket.closed:
            sending = cast("asyncio.Future[object]", self._socket.send(messages.encode(message)))
            sending.add_done_callback(_forget_result)

    async def run(self, take: Callable[[messages.FromEngine], None]) -> int:
        """Hand every message to `take` until the process ends; returns its exit status (negative: a signal)."""
        reading = asyncio.create_task(self._read(take))
        ending = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()  # `take` failed: a defect, not to be hidden
            await asyncio.wait({reading}, timeout=_LAST_WORDS)
            return await ending
        finally:
            reading.cancel()
            ending.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)
            await self.close()

    async def _read(self, take: Callable[[messages.FromEngine], None]) -> None:
        while True:
            take(messages.decode_from_engine(await self._socket.recv()))

    async def stop(self, timeout: float) -> None:
        """Ask it to end, and kill it if it has not within `timeout` seconds. `run` notices."""
        self.send(messages.Shutdown())
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout)
        self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Let go of everything; ends the process if it still runs."""
        self.kill()
        if not self._socket.closed:
            self._socket.close()
            self._context.term()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _forget_result(future: asyncio.Future[object]) -> None:
    if not future.cancelled():
        future.exception()


def _has_fileno(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
