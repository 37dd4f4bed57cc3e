"""Server-sent events, and noticing that the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.errors import RequestError
from paceline.server.errors import ClientGone, describe, error_body
from paceline.server.generation import Generation

Result = TypeVar("Result")
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(value: Any) -> bytes:
    """One server-sent event with `value` as JSON."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


class JSON(Response):
    """A JSON response, encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)


def whole_answer(generation: Generation, answer: dict[str, Any]) -> Response:
    """The response to a request that does not stream. Where its time was up, an error with what was done so far."""
    headers = {"x-request-id": generation.id}
    try:
        generation.check_in_time()
    except RequestError as error:
        message, status, param, code = describe(error)
        return JSON({**error_body(message, status, param, code), **answer}, status_code=status, headers=headers)
    return JSON(answer, headers=headers)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` for as long as the client is there. The body must have been read.

    When the client leaves, `work` is cancelled at once and ClientGone raised.
    """
    task = asyncio.create_task(work)
    left = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        left.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A stream of events, each sent as soon as it is made.

    Call `prime()` first: it makes the first event, so that what can never be served still gets an error status. An
    error after that becomes an event with the error. `events` is closed when the client leaves, which aborts the
    generation behind it.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: dict[str, str] | None = None) -> None:
        self.events = events
        self.first = b""
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def prime(self) -> EventStream:
        """Make the first event. Raises what the generation raises before it."""
        self.first = await anext(self.events)
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.events):
            with suppress(ClientGone):
                await while_connected(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async def body(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await body(self.first)
        try:
            async for data in self.events:
                await body(data)
        except Exception as error:
            message, status, param, code = describe(error)
            await body(event(error_body(message, status, param, code)))
        await body(DONE, more=False)
