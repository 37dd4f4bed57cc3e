"""Tenants, quotas, queue limits and deadlines on a live server."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import LiveServer, start_server

LONG = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}
SHORT = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True}
SHARED = "The quick brown fox jumps over the lazy dog. " * 12  # some whole blocks
TENANTS = """
[tenants.alice]
keys = ["alice-key"]

[tenants.bob]
keys = ["bob-key", "sha256:8f1d5b8f4bd4a1ec3ac1b2f9e4f0f1c6f5a2e1f0c9d8b7a6958473625140f3e2"]

[tenants.red]
keys = ["red-key"]
share_cache = "team"

[tenants.blue]
keys = ["blue-key"]
share_cache = "team"

[tenants.slow]
keys = ["slow-key"]
requests = {{ rate = {rate}, burst = 1 }}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quotas") / "tenants.toml"
    path.write_text(TENANTS.format(rate=0.001))
    return path


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[LiveServer]:
    server = start_server(
        tmp_path_factory.mktemp("server") / "log",
        *("--kv-cache-memory", "64MiB", "--max-model-len", "1024", "--max-num-seqs", "4"),
        *("--max-queued-requests", "6", "--quotas", str(file)),
    )
    try:
        yield server
    finally:
        try:
            server.stop()
        finally:
            server.process.kill()


Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask(live: LiveServer) -> Ask:
    def post(body: dict[str, Any], key: str = "alice-key", path: str = "/v1/completions") -> httpx.Response:
        return httpx.post(live.url + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)

    return post


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_no_tenant_finds_what_another_has_cached_unless_they_share(ask: Ask) -> None:
    body = {**SHORT, "prompt": SHARED}
    assert cached(ask(body, "alice-key")) == 0
    assert cached(ask(body, "alice-key")) > 64
    assert cached(ask(body, "bob-key")) == 0
    assert cached(ask({**body, "cache_salt": "tenant alice"}, "bob-key")) == 0
    assert cached(ask({**body, "user": "alice"}, "bob-key")) > 64
    assert cached(ask(body, "red-key")) == 0
    assert cached(ask(body, "blue-key")) > 64


def test_a_key_of_no_tenant_is_refused(ask: Ask) -> None:
    assert ask(SHORT, "mallory-key").status_code == 401


def test_every_connection_of_a_flood_gets_an_answer(live: LiveServer) -> None:
    async def flood() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        headers = {"Authorization": "Bearer bob-key"}
        async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=120, limits=limits) as client:
            return await asyncio.gather(
                *(client.post("/v1/completions", json={**LONG, "max_tokens": 40}) for _ in range(30))
            )

    before = live.metric("refused_total", reason="queue_full")
    answers = asyncio.run(flood())
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429} and statuses[200] >= 6 and statuses[429] > 0
    for answer in answers:
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 600
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
            assert "requests wait, 6 may; try again in" in error["message"]
    assert live.metric("refused_total", reason="queue_full") - before == statuses[429]
    live.wait_until_idle()


def test_a_request_that_takes_too_long_gets_what_was_done_so_far(live: LiveServer, ask: Ask) -> None:
    answer = ask({**LONG, "timeout": 0.6})
    assert answer.status_code == 504
    body = answer.json()
    assert body["error"]["code"] == "request_expired" and body["error"]["type"] == "timeout_error"
    assert body["error"]["message"].startswith("timeout: it may take 0.6 s and has taken")
    assert body["choices"][0]["text"] and body["choices"][0]["finish_reason"] == "expired"
    assert 0 < body["usage"]["completion_tokens"] < 900
    chat = {"messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 900, "ignore_eos": True}
    answer = ask({**chat, "timeout": 0.6}, path="/v1/chat/completions")
    assert answer.status_code == 504 and answer.json()["choices"][0]["message"]["content"]
    assert live.metric("request_success_total", finished_reason="expired") == 2
    live.wait_until_idle()


def test_a_stream_that_takes_too_long_ends_with_what_was_done_and_an_error(live: LiveServer) -> None:
    body = {**LONG, "timeout": 0.6, "stream": True, "stream_options": {"include_usage": True}}
    headers = {"Authorization": "Bearer alice-key"}
    with httpx.stream("POST", live.url + "/v1/completions", json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    error, usage, last = (json.loads(event) for event in events[-2:-5:-1])
    assert error["error"]["code"] == "request_expired"
    assert usage["usage"]["completion_tokens"] > 0
    assert last["choices"][0]["finish_reason"] == "expired"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-3])


def test_over_quota_others_are_served_and_a_new_file_is_taken_in(live: LiveServer, ask: Ask, file: Path) -> None:
    assert ask(SHORT, "slow-key").status_code == 200
    late = ask({**SHORT, "queue_timeout": 0.3}, "slow-key")
    assert late.status_code == 408
    assert late.json()["error"]["code"] == "request_expired"
    assert late.json()["error"]["message"].startswith("queue_timeout: it may wait 0.3 s and has waited 0.3")
    assert ask(SHORT, "alice-key").status_code == 200

    file.write_text(TENANTS.format(rate='"fast"'))
    live.process.send_signal(signal.SIGHUP)
    live.wait_until(lambda: "the tenants and quotas stay as they were" in live.log.read_text())
    assert f"{file}: tenants.slow.requests.rate: 'fast' is not valid; it must be a number above 0" in " ".join(
        live.log.read_text().split()
    )
    assert ask({**SHORT, "queue_timeout": 0.3}, "slow-key").status_code == 408

    file.write_text(TENANTS.format(rate=1000) + "\n[tenants.carol]\nkeys = ['carol-key']\n")
    live.process.send_signal(signal.SIGHUP)
    live.wait_until(lambda: ask(SHORT, "carol-key").status_code == 200)
    assert [ask(SHORT, "slow-key").status_code for _ in range(3)] == [200] * 3


def test_metrics_tell_tenants_and_queue_times(live: LiveServer, ask: Ask) -> None:
    before = live.metric("tenant_generation_tokens_total", tenant="alice")
    count = live.metric("request_queue_time_seconds_count")
    ask(SHORT)
    assert live.metric("tenant_generation_tokens_total", tenant="alice") == before + 4
    assert live.metric("request_queue_time_seconds_count") == count + 1
