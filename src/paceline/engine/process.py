"""The engine in a process of its own: `python -m paceline.engine.process ENDPOINT`.

The configuration comes as one line of JSON on standard input, which the parent then keeps open: when it closes, the
parent is gone, however it died, and this process ends too. Everything else goes over a ZeroMQ socket.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import zmq

from paceline.engine import messages
from paceline.engine.config import EngineConfig
from paceline.errors import ConfigError, ModelError, PacelineError
from paceline.logs import log_to_standard_error

_LINGER = 2000  # milliseconds for the last messages to leave
_START_FAILED = 2


class Link:
    """This side of the socket."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.set(zmq.LINGER, _LINGER)
        self._socket.connect(endpoint)

    def send(self, message: messages.FromEngine) -> None:
        self._socket.send(messages.encode(message))

    def receive(self, timeout: float | None) -> Iterator[messages.ToEngine]:
        """Messages that are there; waits up to `timeout` seconds for the first, None for as long as it takes."""
        if timeout != 0.0 and not self._socket.poll(None if timeout is None else max(1, int(timeout * 1000))):
            return
        with suppress(zmq.Again):
            while True:
                yield messages.decode_to_engine(self._socket.recv(zmq.NOBLOCK))

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def main(arguments: list[str]) -> int:
    """Run until told to stop. Status 2: the start failed for a reason that was sent to the parent."""
    # Stopping is the parent's to decide: a Ctrl-C or a service manager's signal reaches both of us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent reads its files again and tells us, or ends
    log_to_standard_error()
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    endpoint = arguments[0]
    threading.Thread(target=_end_with_parent, args=(endpoint,), daemon=True).start()
    link = Link(endpoint)
    try:
        _serve(config, link)
    except (PacelineError, MemoryError) as error:
        link.send(_failure(config, error))
        return _START_FAILED
    finally:
        link.close()
    return 0


def _serve(config: EngineConfig, link: Link) -> None:
    from paceline.engine.core_loop import EngineLoop
    from paceline.engine.setup import build

    built = build(
        config,
        progress=lambda text: link.send(messages.Progress(text)),
        resolved=lambda source: link.send(messages.Resolved(source)),
    )
    loop = EngineLoop(built.scheduler, built.executor)
    link.send(messages.Ready(built.info))
    loop.run(link.receive, link.send)
    loop.close()


def _failure(config: EngineConfig, error: Exception) -> messages.Failed:
    if isinstance(error, ConfigError):
        return messages.Failed("config", str(error), error.setting, str(error.value), error.allowed)
    if isinstance(error, ModelError):
        return messages.Failed("model", str(error))
    if isinstance(error, MemoryError):
        return messages.Failed("model", f"{config.model}: too little memory; free some or choose a smaller model")
    return messages.Failed("other", str(error))


def _end_with_parent(endpoint: str) -> None:
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    # The parent removes the socket's folder itself, unless it was killed.
    shutil.rmtree(Path(endpoint.removeprefix("ipc://")).parent, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
