"""Stopping: what runs may finish, nothing new is taken, nothing is left behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow

BODY = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_running_requests_finish(start: Any, number: int) -> None:
    live = start()
    engine = children(live.process.pid)
    assert engine
    with httpx.stream("POST", live.url + "/v1/completions", json={**BODY, "max_tokens": 60}, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        live.process.send_signal(number)
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    assert sum('"finish_reason":"length"' in line for line in rest) == 1
    assert live.process.wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(live.url + "/health")
    assert not any(is_running(pid) for pid in engine)


def test_requests_longer_than_the_grace_are_cut_off(start: Any) -> None:
    live = start("--shutdown-grace", "1", "--max-model-len", "1024")
    with httpx.stream("POST", live.url + "/v1/completions", json={**BODY, "max_tokens": 1000}, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        before = time.monotonic()
        threading.Thread(target=lambda: list(_until_closed(lines))).start()
        assert live.stop() == 0
        assert time.monotonic() - before < 15


def _until_closed(lines: Iterator[str]) -> Iterator[str]:
    try:
        yield from lines
    except httpx.TransportError:
        return
