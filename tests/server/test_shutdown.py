"""Stopping: what runs may finish, nothing new is taken, nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
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
        answers: list[httpx.Response] = []
        body = {**BODY, "stream": False, "max_tokens": 1000}
        whole = threading.Thread(target=lambda: answers.append(httpx.post(live.url + "/v1/completions", json=body)))
        whole.start()
        live.wait_until(lambda: live.metric("num_requests_running") == 2)
        before = time.monotonic()
        live.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    whole.join()
    assert rest[-2] == "data: [DONE]" and any('"finish_reason":"abort"' in line for line in rest)
    assert [choice["finish_reason"] for choice in answers[0].json()["choices"]] == ["abort"]
    assert live.process.wait(60) == 0
    assert time.monotonic() - before < 15
    assert "Traceback" not in live.log.read_text()


def test_a_server_whose_engine_is_gone_for_good_ends_and_says_so(start: Any, tmp_path: Path) -> None:
    (tmp_path / "once.yaml").write_text("max_restarts: 0\n")
    live = start("--config", str(tmp_path / "once.yaml"))
    os.kill(children(live.process.pid)[0], signal.SIGKILL)
    assert live.process.wait(30) not in (0, -signal.SIGKILL)
    assert "giving up" in live.log.read_text()


def test_a_request_takes_no_longer_than_it_may_though_the_engine_hangs(start: Any) -> None:
    live = start()
    engine = children(live.process.pid)[0]
    os.kill(engine, signal.SIGSTOP)
    try:
        answer = httpx.post(live.url + "/v1/completions", json={"prompt": "Hi", "timeout": 0.5}, timeout=20)
    finally:
        os.kill(engine, signal.SIGCONT)
    assert answer.status_code == 408
    assert "0.5 seconds" in answer.json()["error"]["message"]
