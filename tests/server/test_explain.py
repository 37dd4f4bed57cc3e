"""Why a request waits, and where its time went, over HTTP."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from .conftest import KEY, LiveServer, Start

PHASES = ("queue", "prefill", "decode", "preempted")
SHORT = {"prompt": "Two and two make", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}


def other(server: LiveServer) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"Authorization": "Bearer another-key"}, timeout=60)


def ended(http: httpx.Client, request_id: str, seconds: float = 20.0) -> dict[str, Any]:
    """The request's report, once its accounts are there."""
    deadline = time.monotonic() + seconds
    while True:
        told: dict[str, Any] = http.get(f"/v1/requests/{request_id}").json()
        if told.get("state") not in ("running", "waiting", "arriving") and told.get("sequences"):
            return told
        assert time.monotonic() < deadline, told
        time.sleep(0.05)


def test_a_finished_request_says_where_its_time_went(server: LiveServer, http: httpx.Client) -> None:
    body = {"prompt": "Two and two make", "max_tokens": 6, "temperature": 0, "ignore_eos": True, "n": 2}
    answer = http.post("/v1/completions", json={**body, "user": "alice"})
    told = ended(http, answer.json()["id"])
    assert (told["state"], told["tenant"], told["n"]) == ("finished", "alice", 2)
    assert [one["index"] for one in told["sequences"]] == [0, 1]
    for one in told["sequences"]:
        assert one["finish_reason"] == "length" and one["generated_tokens"] == 6
        assert sum(one[f"{phase}_seconds"] for phase in PHASES) == pytest.approx(one["total_seconds"], abs=1e-5)
        assert 0 < one["total_seconds"] <= told["total_seconds"] and one["steps"] >= 6
    assert told["prompt_tokens"] == told["sequences"][0]["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]


def test_a_running_request_is_listed_and_seen_by_its_own_key_only(server: LiveServer, http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json=LONG) as stream:
        name, lines = stream.headers["x-request-id"], stream.iter_lines()
        next(lines)
        told = http.get(f"/v1/requests/{name}").json()
        assert told["state"] == "running" and told["sequences"][0]["generated_tokens"] >= 1
        assert name in [one["id"] for one in http.get("/v1/requests").json()["data"]]
        with other(server) as stranger:
            assert stranger.get(f"/v1/requests/{name}").status_code == 404
            listed = stranger.get("/v1/requests", params={"ended": True}).json()
            assert name not in [one["id"] for one in listed["data"]] and "pitfalls" not in listed
    told = ended(http, name)
    assert told["state"] == "aborted" and told["sequences"][0]["finish_reason"] == "abort"


def test_unknown_requests_and_strange_limits(server: LiveServer, http: httpx.Client) -> None:
    answer = http.get("/v1/requests/cmpl-nothing")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "request_not_found"
    assert httpx.get(server.url + "/v1/requests").status_code == 401
    assert http.get("/v1/requests", params={"limit": 0}).status_code in (400, 422)
    assert len(http.get("/v1/requests", params={"ended": True, "limit": 1}).json()["data"]) <= 1


def test_several_prompts_are_parts_of_one_request(server: LiveServer, http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": ["A", "B"], "max_tokens": 2, "ignore_eos": True}).json()
    parts = http.get(f"/v1/requests/{answer['id']}").json()["parts"]
    assert [part["id"] for part in parts] == [answer["id"] + "-0", answer["id"] + "-1"]


@pytest.mark.slow
def test_under_another_discipline_a_request_that_waits_says_why(start: Start) -> None:
    live = start("--discipline", "orca", "--optimize", "tail", "--max-num-seqs", "1", "--request-log-size", "2")
    lines = [line for line in live.printed if "optimize tail" in line]
    assert any("max_num_seqs stays 1, as you set it" in line for line in lines)
    assert any("scheduling orca, order vtc" in line for line in live.printed)
    chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    with httpx.Client(base_url=live.url, timeout=60) as http:
        answer = http.post("/v1/chat/completions", json={**chat, "max_tokens": 20}).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
        told: list[dict[str, Any]] = []

        def waits() -> bool:
            told[:] = [one for one in http.get("/v1/requests").json()["data"] if one["state"] == "waiting"]
            return bool(told) and not told[0]["sequences"][0]["why"].startswith("new")

        with http.stream("POST", "/v1/completions", json=LONG) as first, ThreadPoolExecutor(1) as pool:
            tokens = first.iter_lines()
            next(tokens)
            second = pool.submit(httpx.post, live.url + "/v1/completions", json={**SHORT, "user": "b"}, timeout=120)
            live.wait_until(waits)
            assert told[0]["sequences"][0]["why"] == "slots: all 1 are taken"
            first.close()
            name = second.result().json()["id"]
        assert ended(http, name)["sequences"][0]["queue_seconds"] > 0
        assert http.get("/v1/requests").json()["pitfalls"] == []
    assert KEY not in "".join(live.printed)
