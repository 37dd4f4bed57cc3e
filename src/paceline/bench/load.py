"""The load: sends a workload in an open or a closed loop and gathers what came back."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from paceline.bench.bodies import PromptStyle, prepare
from paceline.bench.client import Reply, send
from paceline.bench.scrape import Scraper
from paceline.bench.target import Target
from paceline.workload.records import Outcome, Records, RecordsBuilder
from paceline.workload.requests import TimedRequest, Workload
from paceline.workload.run import Timeline


@dataclass(frozen=True)
class LoadOptions:
    """How a workload is sent."""

    concurrency: int | None = None
    """Most requests at a time. In a closed loop: as many as there are users."""
    closed: bool = False
    """Send the next request when one ends, instead of when it is due."""
    time_limit: float | None = None
    """Seconds after which what is not done is cut off."""
    scrape_every: float = 0.5
    style: PromptStyle = field(default_factory=PromptStyle)
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass
class Progress:
    """Counts a display may read while the load runs."""

    total: int
    sent: int = 0
    ok: int = 0
    failed: int = 0
    tokens: int = 0
    lateness: float = 0.0
    recent_ttft: list[float] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def in_flight(self) -> int:
        return self.sent - self.ok - self.failed


@dataclass
class ClientReport:
    """How the client itself fared."""

    cpu_share: float
    """CPU seconds per second: near 1, the client is the bottleneck."""
    loop_lag_p99: float
    """Seconds by which the event loop woke late, 99th percentile."""
    host: str
    errors: Counter[str] = field(default_factory=Counter)
    """Message -> requests."""
    unsent: int = 0
    prompt_disagreements: int = 0
    """Requests whose prompt the server counted otherwise."""
    short_outputs: int = 0
    uncounted: int = 0
    """Requests whose output tokens are chunks, for want of a count by the server."""
    tokens_per_chunk: float = 1.0


@dataclass
class LoadResult:
    """All of it; times are seconds from the start of the load."""

    records: Records
    timeline: Timeline
    client: ClientReport
    prompt_lens: list[int]


class Load:
    """A workload on its way. Call `run` once."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, workload: Workload, options: LoadOptions):
        self.progress = Progress(len(workload))
        self._session, self._target = session, target
        self._workload, self._options = workload, options
        self._start = time.perf_counter()
        self._builder = RecordsBuilder()
        self._errors: Counter[str] = Counter()
        self._ended: dict[str, asyncio.Future[float]] = {}
        self._gate = asyncio.Semaphore(options.concurrency) if options.concurrency else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._disagree = self._short = self._uncounted = self._chunks = self._chunk_tokens = 0

    def clock(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self._start

    async def run(self) -> LoadResult:
        """Send everything and wait for it, or for the time limit. Cancelling ends the load early with what there is."""
        scraper = Scraper(self._session, self._target, self.clock)
        await scraper.sample()
        self.progress.timeline = scraper.timeline
        lag: list[float] = []
        beside = [asyncio.create_task(scraper.run(self._options.scrape_every)), asyncio.create_task(_watch_loop(lag))]
        cpu, self._start = time.process_time(), time.perf_counter()
        scraper.timeline.at[:] = [0.0] * len(scraper.timeline.at)
        try:
            await asyncio.wait_for(self._send_all(), self._options.time_limit)
        except (asyncio.TimeoutError, asyncio.CancelledError):
            await self._cut_off()
        finally:
            spent, wall = time.process_time() - cpu, max(self.clock(), 1e-9)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        await scraper.sample()
        client = ClientReport(
            cpu_share=spent / wall,
            loop_lag_p99=float(np.percentile(lag, 99)) if lag else 0.0,
            host=f"{os.uname().nodename} ({os.cpu_count()} CPUs)",
            errors=self._errors,
            unsent=len(self._workload) - len(self._builder),
            prompt_disagreements=self._disagree,
            short_outputs=self._short,
            uncounted=self._uncounted,
            tokens_per_chunk=self._chunk_tokens / self._chunks if self._chunks else 1.0,
        )
        return LoadResult(
            self._builder.build(), scraper.timeline, client, [request.prompt_len for request in self._workload.requests]
        )

    async def _send_all(self) -> None:
        if self._options.closed:
            waiting = iter(self._workload.requests)
            users = [self._user(waiting) for _ in range(self._options.concurrency or 1)]
            self._tasks = {asyncio.create_task(user) for user in users}
        else:
            for request in self._workload.requests:
                if request.after is None:
                    body = self._body(request)
                    await _sleep_until(request.arrival, self.clock)
                    self._spawn(self._one(request, request.arrival, body))
                else:
                    self._ended.setdefault(_turn(request, -1), asyncio.get_running_loop().create_future())
                    self._spawn(self._next_turn(request))
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks)
            self._tasks -= done
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: None if done.cancelled() or done.exception() else self._tasks.discard(done))

    async def _user(self, waiting: Iterable[TimedRequest]) -> None:
        for request in waiting:
            due = self.clock()
            if request.after is not None:
                await self._next_turn(request)
            else:
                await self._one(request, due, self._body(request))

    async def _next_turn(self, request: TimedRequest) -> None:
        before = self._ended.setdefault(_turn(request, -1), asyncio.get_running_loop().create_future())
        ended = await before
        if ended != ended:
            self._end(request, ended)
            self._errors["not sent: the turn before it failed"] += 1
            return
        body = self._body(request)
        due = max(request.arrival, ended + (request.after or 0.0))
        await _sleep_until(due, self.clock)
        await self._one(request, due, body)

    async def _one(self, request: TimedRequest, due: float, body: bytes) -> None:
        if self._gate is None or self._options.closed:
            return self._take(request, due, await self._send(body))
        try:
            async with self._gate:
                self._take(request, due, await self._send(body))
        except asyncio.CancelledError:
            self._take(request, due, Reply(float("nan"), last=self.clock(), error="not sent before the end of the run"))

    async def _send(self, body: bytes) -> Reply:
        self.progress.sent += 1
        return await send(self._session, self._target, body, self.clock)

    def _body(self, request: TimedRequest) -> bytes:
        return prepare(self._target, request, self._options.style, self._options.sampling)

    def _take(self, request: TimedRequest, due: float, reply: Reply) -> None:
        self._builder.add(
            due,
            sent=reply.sent,
            first=reply.first,
            last=reply.last,
            outcome=reply.outcome,
            prompt_tokens=reply.prompt_tokens if reply.prompt_tokens >= 0 else request.prompt_len,
            output_tokens=reply.output_tokens,
            cached_tokens=reply.cached_tokens,
            tenant=request.tenant,
            gaps=reply.gaps,
        )
        ok = reply.outcome is Outcome.OK
        progress = self.progress
        progress.ok += ok
        progress.failed += not ok
        progress.tokens += reply.output_tokens
        progress.lateness = reply.sent - due
        if ok:
            progress.recent_ttft = [*progress.recent_ttft[-49:], reply.first - due]
            self._chunks += reply.chunks
            self._chunk_tokens += reply.output_tokens
            self._disagree += reply.prompt_tokens >= 0 and reply.prompt_tokens != request.prompt_len
            self._short += reply.output_tokens < request.output_len
            self._uncounted += not reply.counted
        else:
            self._errors[reply.error] += 1
        self._end(request, reply.last if ok else float("nan"))

    def _end(self, request: TimedRequest, at: float) -> None:
        if request.session:
            ended = self._ended.setdefault(_turn(request, 0), asyncio.get_running_loop().create_future())
            if not ended.done():
                ended.set_result(at)

    async def _cut_off(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _turn(request: TimedRequest, offset: int) -> str:
    return f"{request.session}/{request.turn + offset}"


async def _sleep_until(due: float, clock: Any) -> None:
    while (left := due - clock()) > 0:
        await asyncio.sleep(left)


async def _watch_loop(lag: list[float], every: float = 0.02) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(every)
        lag.append(max(0.0, time.perf_counter() - before - every))
