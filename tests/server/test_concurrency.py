"""Many clients at once, and clients that leave."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpx
import openai
import pytest

MODEL = "smollm2-135m"
LONG = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}


def test_64_streams_at_once_get_what_each_gets_alone(server: Any, client: openai.OpenAI) -> None:
    prompts = [f"Count on from {number}: {number}, {number + 1}," for number in range(8)]
    alone = {
        prompt: client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0).choices[0].text
        for prompt in prompts
    }

    async def stream(aclient: openai.AsyncOpenAI, prompt: str) -> tuple[str, str]:
        chunks = await aclient.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0, stream=True)
        return prompt, "".join([chunk.choices[0].text async for chunk in chunks])

    async def everyone() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(
            base_url=client.base_url, api_key=client.api_key, max_retries=0, timeout=200
        ) as aclient:
            return await asyncio.gather(*(stream(aclient, prompts[i % 8]) for i in range(64)))

    for prompt, text in asyncio.run(everyone()):
        assert text == alone[prompt]
    server.wait_until_idle()


@pytest.mark.parametrize("form", ["whole", "stream", "several prompts", "chat"])
def test_a_client_that_leaves_frees_everything(server: Any, http: httpx.Client, form: str) -> None:
    live = server
    live.wait_until_idle()
    before = live.metric("request_success_total", finished_reason="abort")
    generated = live.metric("generation_tokens_total")
    path, body = "/v1/completions", dict(LONG)
    if form == "chat":
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    if form == "several prompts":
        body["prompt"] = ["Once upon a time", "In the beginning"]
    if form == "whole":
        with pytest.raises(httpx.ReadTimeout):
            http.post(path, json=body, timeout=httpx.Timeout(30, read=1))
    else:
        with http.stream("POST", path, json={**body, "stream": True}) as response:
            assert next(response.iter_lines()).startswith("data: ")
    expected = 2 if form == "several prompts" else 1
    live.wait_until(lambda: live.metric("request_success_total", finished_reason="abort") == before + expected)
    live.wait_until_idle()
    assert live.metric("generation_tokens_total") - generated < 600 * expected
    assert live.metric("kv_cache_blocks", state="held") == 0


def test_a_client_that_leaves_while_waiting_frees_its_place(server: Any, http: httpx.Client) -> None:
    live = server
    many = {**LONG, "n": 48, "max_tokens": 40, "stream": True}  # fills every place of the batch
    with http.stream("POST", "/v1/completions", json=many) as response:
        lines = response.iter_lines()
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json=LONG, timeout=httpx.Timeout(30, read=0.3))
        live.wait_until(lambda: live.metric("num_requests_waiting") == 0)
    live.wait_until_idle()


def test_a_request_that_stops_halfway_does_no_harm(server: Any, http: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a-test-key\r\n")
        raw.sendall(b"Content-Length: 1000\r\n\r\n{")
    assert http.get("/health").status_code == 200


def test_health_answers_while_the_engine_works(server: Any, http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        next(response.iter_lines())
        start = time.monotonic()
        assert httpx.get(server.url + "/health").status_code == 200
        assert time.monotonic() - start < 5
