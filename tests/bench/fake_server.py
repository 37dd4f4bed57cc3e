"""An OpenAI-compatible server that misbehaves to order, over a real port."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

TOKEN_SECONDS = 0.01


class FakeServer:
    """`manner` decides how it answers; `seen` holds the bodies it got."""

    def __init__(self) -> None:
        self.manner = "plain"
        self.seen: list[dict[str, Any]] = []
        self.url = ""
        self._turn = asyncio.Lock()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake", "owned_by": "nobody", "max_model_len": 4096}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        if self.manner == "text only" and isinstance(body.get("prompt"), list):
            return web.json_response({"error": {"message": "prompt must be a string"}}, status=400)
        if self.manner == "no extras" and ("ignore_eos" in body or "continuous_usage_stats" in body["stream_options"]):
            return web.json_response({"error": {"message": "unknown field"}}, status=400)
        if self.manner in ("full", "full after two") and (self.manner == "full" or len(self.seen) > 2):
            return web.json_response({"error": {"message": "too many requests"}}, status=429)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await getattr(self, "_" + self.manner.replace(" ", "_"), self._plain)(answer, body)
        return answer

    async def _plain(self, answer: web.StreamResponse, body: dict[str, Any], size: int = 1) -> None:
        prompt = body.get("prompt") or "words of a chat"
        length = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        total = body["max_tokens"]
        for done in range(0, total, size):
            await asyncio.sleep(TOKEN_SECONDS)
            await answer.write(_event(_chunk(body, min(done + size, total), length)))
        usage = {"prompt_tokens": length, "completion_tokens": total, "prompt_tokens_details": {"cached_tokens": 0}}
        await answer.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")

    async def _three_at_a_time(self, answer: web.StreamResponse, body: dict[str, Any]) -> None:
        await self._plain(answer, body, 3)

    async def _one_at_a_time(self, answer: web.StreamResponse, body: dict[str, Any]) -> None:
        async with self._turn:
            await self._plain(answer, body)

    async def _torn(self, answer: web.StreamResponse, body: dict[str, Any]) -> None:
        """Events in pieces of seven bytes, with carriage returns and comments."""
        data = b": hello\r\n\r\n"
        for done in range(body["max_tokens"]):
            data += _event(_chunk(body, done + 1, 4)).replace(b"\n", b"\r\n")
        data += b"data: [DONE]\r\n\r\n"
        for begin in range(0, len(data), 7):
            await answer.write(data[begin : begin + 7])
            await asyncio.sleep(0)

    async def _breaks_off(self, answer: web.StreamResponse, body: dict[str, Any]) -> None:
        await answer.write(_event(_chunk(body, 1, 4)))

    async def _error_inside(self, answer: web.StreamResponse, body: dict[str, Any]) -> None:
        await answer.write(_event(_chunk(body, 1, 4)))
        await answer.write(_event({"error": {"message": "the engine died"}}) + b"data: [DONE]\n\n")

    async def _never_ends(self, answer: web.StreamResponse, body: dict[str, Any]) -> None:
        if body["max_tokens"] == 2:  # the client's probe
            return await self._plain(answer, body)
        await answer.write(_event(_chunk(body, 1, 4)))
        await asyncio.sleep(60)


def _chunk(body: dict[str, Any], tokens: int, prompt: int) -> dict[str, Any]:
    text = {"delta": {"content": "a"}} if "messages" in body else {"text": "a"}
    chunk: dict[str, Any] = {"choices": [{"index": 0, **text, "finish_reason": None}]}
    if body["stream_options"].get("continuous_usage_stats"):
        chunk["usage"] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    return chunk


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@contextmanager
def running() -> Iterator[FakeServer]:
    """The server, in a thread of its own."""
    fake, loop, ready = FakeServer(), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        application = web.Application()
        application.router.add_get("/v1/models", fake.models)
        application.router.add_post("/v1/completions", fake.complete)
        application.router.add_post("/v1/chat/completions", fake.complete)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
