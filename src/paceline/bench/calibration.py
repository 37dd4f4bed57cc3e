"""What the client itself adds: the same code against a server on this machine that answers at once."""

from __future__ import annotations

import json

import numpy as np
from aiohttp import web

from paceline.bench.bodies import body_of
from paceline.bench.client import send
from paceline.bench.target import Target, open_session

_ROUNDS = 24


async def client_overhead() -> float:
    """Median seconds from sending to the first token of an answer that needs no work: part of every TTFT measured."""
    application = web.Application()
    application.router.add_post("/v1/completions", _answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        target = Target(f"http://{host}:{port}", "none")
        body = body_of(target, 2, ids=list(range(1000, 1256)))
        async with open_session(10) as session:
            replies = [await send(session, target, body) for _ in range(_ROUNDS)]
    finally:
        await runner.cleanup()
    return float(np.median([reply.first - reply.sent for reply in replies[4:]]))


async def _answer(request: web.Request) -> web.StreamResponse:
    await request.read()
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    chunk = {"choices": [{"index": 0, "text": "a"}], "usage": {"prompt_tokens": 256, "completion_tokens": 1}}
    await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
    return answer
