"""A `paceline serve` of one's own, for as long as a measurement takes."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from types import TracebackType

from paceline.bench.errors import BenchError
from paceline.errors import flag_of

START_TIMEOUT = 600.0
_SERVES = re.compile(r" serves .+ at (http://\S+)")


def typed(settings: Mapping[str, object]) -> list[str]:
    """Settings as they are typed behind a command."""
    return [text for name, value in settings.items() for text in (flag_of(name), str(value))]


class ServerProcess:
    """Use it as a context manager; `url` is where it listens. It ends with the block, whatever happens."""

    def __init__(self, *flags: str) -> None:
        self.flags = flags
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (it lives as long as the process)

    def __enter__(self) -> ServerProcess:
        command = [sys.executable, "-m", "paceline", "serve", "--port", "0", *self.flags]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            self.url = self._wait_for_url(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask it to end, then make it."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._log.close()

    def _wait_for_url(self, process: subprocess.Popen[str]) -> str:
        found: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read, args=(process, found), daemon=True).start()
        try:
            url = found.get(timeout=START_TIMEOUT)
        except queue.Empty:
            raise BenchError(f"paceline serve {' '.join(self.flags)}: not ready in {START_TIMEOUT:.0f} s") from None
        if url:
            return url
        process.wait(30)
        self._log.seek(0)
        said = [line for line in self._log.read().splitlines() if line.strip()]
        raise BenchError(
            f"paceline serve {' '.join(self.flags)} did not start: {said[-1] if said else 'it said nothing'}"
        )


def _read(process: subprocess.Popen[str], found: queue.Queue[str]) -> None:
    """Pass the URL on, and go on reading so that the pipe never fills."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if match := _SERVES.search(line):
                found.put(match[1])
    except ValueError:  # closed while reading
        pass
    found.put("")
