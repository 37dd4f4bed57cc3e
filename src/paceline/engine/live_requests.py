"""The unfinished requests of an engine, in the server process: who reads them, and which engine has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from paceline.engine import messages
from paceline.engine.outputs import RequestOutput
from paceline.engine.pitfalls import Pitfalls
from paceline.engine.probation import Probation
from paceline.engine.request_log import RequestLog
from paceline.engine.streams import RequestStream
from paceline.errors import PacelineError, RequestError

logger = logging.getLogger(__name__)

LATE = 1.0  # seconds the engine is given to end a request in time itself


class LiveRequests:
    """Streams by number and by id, from the moment they are sent to the engine until they are over.

    Attributes:
        idle: set while there are none.
    """

    def __init__(self, send: Callable[[messages.ToEngine], None], log: RequestLog, pitfalls: Pitfalls) -> None:
        """`send` gives a message to the engine process of the moment."""
        self._send, self._log, self._pitfalls = send, log, pitfalls
        self._streams: dict[int, RequestStream] = {}
        self._ids: dict[str, int] = {}
        self._news: dict[int, asyncio.Event] = {}  # by number; set when the stream has something to give out
        self._probation = Probation()
        self.idle = asyncio.Event()
        self.idle.set()

    def __len__(self) -> int:
        return len(self._streams)

    # -- the reader's side ------------------------------------------------------------------------------------------

    async def read(
        self, stream: RequestStream, tenant: str, priority: int, owner: str | None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Send the request to the engine and give out what is new, until it is over. A reader that leaves aborts it.

        RequestError: the id is in use; or as the request fails.
        """
        news = self._open(stream)
        self._log.open(stream.number, stream.request_id, tenant, priority, len(stream.prompt), stream.params.n, owner)
        self._pitfalls.arrived(stream.prompt)
        if self._probation.on:
            self._probation.hold(stream.number)
        else:
            self._send(stream.message())
        try:
            while True:
                await self._news_of(stream, news)
                news.clear()
                output = stream.output()
                if output is not None:
                    yield output
                    if output.finished:
                        return
                if stream.error is not None:
                    raise stream.error
        finally:
            if stream.number in self._streams:  # the reader left
                self._forget(stream)
                self._send(messages.Abort(stream.number))

    def _open(self, stream: RequestStream) -> asyncio.Event:
        if stream.request_id in self._ids:
            raise RequestError(f"request id {stream.request_id!r} is already in use", param="request_id")
        news = asyncio.Event()
        self._streams[stream.number], self._news[stream.number] = stream, news
        self._ids[stream.request_id] = stream.number
        self.idle.clear()
        return news

    async def _news_of(self, stream: RequestStream, news: asyncio.Event) -> None:
        """Wait for them; not longer than the request may take, whatever the engine does."""
        left = stream.seconds_left()
        if left is None:
            await news.wait()
            return
        try:
            await asyncio.wait_for(news.wait(), max(left, 0.0) + LATE)
        except asyncio.TimeoutError:
            stream.expire()
            self._send(messages.Abort(stream.number))
            self._wake(stream)

    def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with finish_reason "abort". False if it is not known (or already over)."""
        number = self._ids.get(request_id)
        if number is None:
            return False
        self._abort(self._streams[number])
        return True

    def abort_all(self) -> None:
        """End every request."""
        for stream in list(self._streams.values()):
            self._abort(stream)

    def _abort(self, stream: RequestStream) -> None:
        self._send(messages.Abort(stream.number))
        stream.abort()
        self._wake(stream)

    # -- the engine's side ------------------------------------------------------------------------------------------

    def take(self, output: messages.SequenceOutput) -> None:
        """A step's news of one sequence."""
        if (stream := self._streams.get(output.number)) is not None:  # else it was aborted meanwhile
            self._give(stream, output)
        self._passed(output.number)

    def _give(self, stream: RequestStream, output: messages.SequenceOutput) -> None:
        try:
            stopped = stream.take(output)
        except Exception as error:  # one request's text must not take all others down
            logger.exception("request %s: its output could not be read", stream.request_id)
            stream.error = RequestError(f"its output could not be read: {error}", code="engine_error", status=500)
            self._send(messages.Abort(output.number))
        else:
            if stopped:
                self._send(messages.Finish(output.number, output.index))
        self._wake(stream)

    def refuse(self, message: messages.Refused) -> None:
        """The engine does not take the request in."""
        if (stream := self._streams.get(message.number)) is not None:
            stream.error = RequestError(
                message.message,
                param=message.param,
                code=message.code,
                status=message.status,
                retry_after=message.retry_after,
            )
            self._wake(stream)

    def hand_over(self, one_by_one: bool) -> None:
        """Give a new engine what the one before had; one by one where engines die again and again."""
        if one_by_one:
            self._try_next(self._probation.begin(self._streams))
            return
        for stream in self._streams.values():
            self._send(stream.message())

    def engine_died(self, how: str) -> None:
        """Give up the request that was being tried when the engine died, if one was on probation."""
        if (culprit := self._streams.get(self._probation.end() or -1)) is not None:
            culprit.error = RequestError(
                f"the engine ended ({how}) on this request, again and again", code="engine_error", status=500
            )
            logger.error("request %s is given up: the engine ends on it", culprit.request_id)
            self._wake(culprit)

    def fail_all(self, error: PacelineError) -> None:
        """No engine will ever go on with them."""
        for stream in list(self._streams.values()):
            stream.error = error
            self._wake(stream)

    def _passed(self, number: int) -> None:
        """The engine has survived that request, or need not any more."""
        if self._probation.on:
            self._try_next(self._probation.passed(number))

    def _try_next(self, number: int | None) -> None:
        if number is not None and number in self._streams:
            self._send(self._streams[number].message())

    # -- the end of one ---------------------------------------------------------------------------------------------

    def _wake(self, stream: RequestStream) -> None:
        """Tell the reader; a stream that is over is no longer ours."""
        news = self._news[stream.number]
        if stream.finished:
            self._forget(stream)
        news.set()

    def _forget(self, stream: RequestStream) -> None:
        if self._streams.pop(stream.number, None) is None:
            return
        del self._ids[stream.request_id], self._news[stream.number]
        state, error = stream.outcome()
        entry = self._log.close(stream.number, state, error)
        if entry is not None and entry.sequences:
            self._pitfalls.ended(min(one["queue_seconds"] for one in entry.sequences.values()))
        self._passed(stream.number)
        if not self._streams:
            self.idle.set()
