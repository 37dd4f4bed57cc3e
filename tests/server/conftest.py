"""One live server for all tests of this folder: the real model, over a real port, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

KEY = "a-test-key"
BODY_LIMIT = 256 * 1024
CONTEXT = 1024
START_TIMEOUT = 120.0

Start = Callable[..., "LiveServer"]


@dataclass
class LiveServer:
    """A running `paceline serve` and ways to talk to it."""

    process: subprocess.Popen[str]
    url: str
    printed: list[str]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 when there are none."""
        page = httpx.get(self.url + "/metrics", timeout=30).text
        total = 0.0
        for line in page.splitlines():
            match = re.fullmatch(r"paceline:(\w+)(?:\{(.*)\})? (\S+)", line)
            if (
                match
                and match[1] == name
                and all(f'{key}="{value}"' in (match[2] or "") for key, value in labels.items())
            ):
                total += float(match[3])
        return total

    def wait_until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Ask the live server again and again until `condition` holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not reached in {seconds} s\n{self.log.read_text()}"
            time.sleep(0.05)

    def wait_until_idle(self) -> None:
        self.wait_until(lambda: self.metric("num_requests_running") + self.metric("num_requests_waiting") == 0)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask the server to stop; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def start_server(log: Path, *flags: str) -> LiveServer:
    command = [sys.executable, "-m", "paceline", "serve", "--port", "0", "--dtype", "float32", "--threads", "1", *flags]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
    assert process.stdout is not None
    printed: list[str] = []
    url = ""
    for line in process.stdout:
        printed.append(line.rstrip("\n"))
        if match := re.search(r" serves \S+ at (http://\S+)", line):
            url = match[1]
        if line.startswith("curl "):
            return LiveServer(process, url, printed, log)
    process.wait()
    raise AssertionError(f"the server did not start: {printed}\n{log.read_text()}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = start_server(
        tmp_path_factory.mktemp("server") / "log",
        *("--max-model-len", str(CONTEXT), "--kv-cache-memory", "256MiB", "--max-num-seqs", "48"),
        *("--api-key", "another-key", "--api-key", KEY, "--max-body-size", "256KiB"),
    )
    try:
        yield live
    finally:
        try:
            live.stop()
        finally:
            live.process.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts more servers; they end with the test."""
    started: list[LiveServer] = []

    def start_one(*flags: str) -> LiveServer:
        live = start_server(tmp_path / f"log{len(started)}", "--kv-cache-memory", "64MiB", *flags)
        started.append(live)
        return live

    yield start_one
    for live in started:
        live.process.kill()
        live.process.wait()


@pytest.fixture(scope="session")
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="session")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as made:
        yield made
