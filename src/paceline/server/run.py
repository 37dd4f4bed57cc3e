"""From a configuration to a running server, and back: bind, start the engine, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from dataclasses import replace
from typing import Any

import uvicorn

from paceline.engine.async_engine import AsyncEngine
from paceline.engine.config import EngineConfig
from paceline.errors import ConfigError, EngineDeadError
from paceline.server.app import create_app
from paceline.server.config import ServerConfig

log = logging.getLogger(__name__)
LAST_WORDS = 5  # seconds clients get to read their answers once requests are ended
Progress = Callable[[str], None]
Ready = Callable[[AsyncEngine, ServerConfig], None]


class Interrupted(Exception):
    """A signal came before the server was ready."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


async def serve(engine_config: EngineConfig, config: ServerConfig, progress: Progress, ready: Ready) -> None:
    """Serve until SIGINT or SIGTERM, then drain for `config.shutdown_grace` seconds; a second signal ends at once.

    The port is taken before the model is loaded but answers only after, so that nobody waits on a server that cannot
    start. `ready` gets the configuration with the port chosen.
    Raises ConfigError, ModelError or EngineDeadError when the start fails, Interrupted when a signal ends it.
    """
    with contextlib.closing(bind(config.host, config.port)) as listener, _signals() as signals:
        bound = replace(config, port=listener.getsockname()[1])
        engine = await signals.interruptible(AsyncEngine.start(engine_config, progress))
        try:
            server = _server(engine, bound)
            signals.attach(server, lambda: engine.shutdown(bound.shutdown_grace))
            signals.reload_with(engine)
            with _port_errors(config.host, bound.port):
                listener.listen(2048)
            ready(engine, bound)
            died = asyncio.create_task(_end_with(engine, server))
            await server.serve(sockets=[listener])
            died.cancel()
        finally:
            await engine.shutdown(0.0)  # what wanted to finish has finished, or had its time
        if engine.died.is_set():
            raise EngineDeadError(engine.state)


async def _end_with(engine: AsyncEngine, server: uvicorn.Server) -> None:
    """A server whose engine is gone for good ends too, so that whoever watches it can start another."""
    await engine.died.wait()
    server.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address. Raises ConfigError naming --host or --port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError("--host", host, "a host name or an address of this machine") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        with _port_errors(host, port):
            listener.bind(address)
    except ConfigError:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _port_errors(host: str, port: int) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError("--port", port, "a free port; another program listens there, so choose another") from None
        if error.errno == errno.EACCES:
            raise ConfigError("--port", port, "1024 or more unless you are root") from None
        raise ConfigError("--host", host, f"an address of this machine ({error.strerror})") from None


def _server(engine: AsyncEngine, config: ServerConfig) -> uvicorn.Server:
    settings = uvicorn.Config(
        create_app(engine, config),
        log_config=None,
        access_log=config.access_log,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=round(config.shutdown_grace) + LAST_WORDS,
    )
    return _Server(settings)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: ours are there from before the engine starts."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Signals:
    """What SIGINT and SIGTERM do: end the start, then drain the server, then end at once."""

    def __init__(self) -> None:
        self._number = 0
        self._server: uvicorn.Server | None = None
        self._starting: asyncio.Task[AsyncEngine] | None = None
        self._drain: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._draining: asyncio.Task[None] | None = None

    def handle(self, number: int) -> None:
        self._number = number
        if self._starting is not None:
            self._starting.cancel()
        if self._server is not None:
            self._server.force_exit = self._server.should_exit
            self._server.should_exit = True
            if self._draining is None and self._drain is not None:
                self._draining = asyncio.create_task(self._drain())
            log.info("stopping: running requests may finish; a second signal ends them")

    def attach(self, server: uvicorn.Server, drain: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """From now on a signal ends the server; `drain` lets requests finish that are in time, and ends the rest."""
        self._server, self._drain = server, drain
        server.should_exit = bool(self._number)

    def reload_with(self, engine: AsyncEngine) -> None:
        """From now on SIGHUP reads the file of tenants again, where there is one."""
        if engine.tenants.path is not None and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_tenants, engine)

    async def interruptible(self, start: Coroutine[Any, Any, AsyncEngine]) -> AsyncEngine:
        """The engine that `start` makes. Raises Interrupted when a signal comes first."""
        self._starting = asyncio.create_task(start)
        try:
            return await self._starting
        except asyncio.CancelledError:
            if self._number:
                raise Interrupted(self._number) from None
            raise
        finally:
            self._starting = None


def reload_tenants(engine: AsyncEngine) -> None:
    """Take in what the file of tenants says now; keep what it said before when it is wrong."""
    try:
        engine.reload_tenants()
    except ConfigError as error:
        log.error("the tenants and quotas stay as they were: %s", error)
    else:
        log.info("read %s again; tenants in it: %d", engine.tenants.path, len(engine.tenants.quotas.tenants))


@contextlib.contextmanager
def _signals() -> Generator[_Signals, None, None]:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.handle, number)
    try:
        yield signals
    finally:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                loop.remove_signal_handler(getattr(signal, name))
