"""A workload on an engine in this process: exact token ids in, when each token came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.bench.offline_workloads import FIRST_TOKEN
from paceline.workload.metrics import Stretch, summarise
from paceline.workload.records import ExactGaps, Records, RecordsBuilder
from paceline.workload.requests import TimedRequest, Workload, named_key

PERCENTILES = (50.0, 90.0, 99.0)
WARM_UP_TOKENS = 56  # of a sequence of the warm-up, in and out
_IDLE = 0.001  # seconds
_COUNTERS = ("steps", "preemptions", "prefix_hit_tokens", "prefix_query_tokens", "recomputed_tokens")
_SECONDS = ("busy_seconds", "execute_seconds")


class News(NamedTuple):
    """What a step brought for a request."""

    number: int
    tokens: int
    finished: bool
    cached_tokens: int | None  # with the first token: prompt tokens that were taken from the cache


class Engine(Protocol):
    """What is measured."""

    vocab_size: int

    def add(self, number: int, prompt: NDArray[np.int32], output: int) -> None:
        """Take in a request for exactly `output` tokens."""
        ...

    def step(self) -> list[News] | None:
        """Run one step; None when nothing could run."""
        ...

    def stats(self) -> dict[str, float]:
        """Totals since the start: those of the scheduler, and seconds in all and in the executor."""
        ...


@dataclass(frozen=True)
class Measured:
    """A run: what happened to each request, and what the engine counted meanwhile."""

    label: str
    workload: Workload
    records: Records
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def stretch(self) -> Stretch:
        """The figures of the whole run."""
        return summarise(self.records, percents=PERCENTILES).whole

    @property
    def figures(self) -> Figures:
        return figures(self.records)


@dataclass(frozen=True)
class Figures:
    """The rates that the workloads are compared by. NaN: the run has no such stretch."""

    seconds: float
    output_rate: float
    """Output tokens per second of the whole run."""
    prompt_rate: float
    """Prompt tokens per second until the last first token."""
    decode_rate: float
    """Output tokens per second while every request decodes: after the last first token, before the first end."""
    ms_per_token: float
    """Of one stream in that time."""
    request_rate: float


def figures(records: Records) -> Figures:
    """Of records with exact gaps."""
    begin, end = float(records.scheduled[0]), float(np.nanmax(records.last))
    prefilled = float(np.nanmax(records.first))
    low, high = prefilled, float(np.nanmin(records.last))
    rate = float("nan")
    if high > low:
        assert isinstance(records.gaps, ExactGaps)
        stamps = [first + np.cumsum(gaps) for first, gaps in zip(records.first, records.gaps.per_request, strict=True)]
        inside = sum(int(((at > low + 1e-9) & (at <= high + 1e-9)).sum()) for at in stamps)
        rate = inside / (high - low)
    seconds = max(end - begin, 1e-9)
    return Figures(
        seconds=seconds,
        output_rate=float(records.output_tokens.sum()) / seconds,
        prompt_rate=float(records.prompt_tokens.sum()) / max(prefilled - begin, 1e-9),
        decode_rate=rate,
        ms_per_token=len(records) / rate * 1e3 if rate > 0 else float("nan"),
        request_rate=len(records) / seconds,
    )


def warm_up(engine: Engine, seed: int = 0) -> None:
    """A few requests that share nothing with a workload, so that no first step of its kind is measured."""
    prompt = WARM_UP_TOKENS - 8
    requests = [
        TimedRequest(f"warm {number}", 0.0, prompt, 8, parts=((named_key(f"warm up {number}"), prompt),))
        for number in range(4)
    ]
    drive(engine, Workload(requests, "warm-up"), seed)


def drive(
    engine: Engine,
    workload: Workload,
    seed: int = 0,
    label: str = "",
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Measured:
    """Give the engine each request when it is due and step it until all have their tokens."""
    prompts = [request.token_ids(engine.vocab_size, seed, FIRST_TOKEN) for request in workload.requests]
    stamps: list[list[float]] = [[] for _ in prompts]
    cached = [-1] * len(prompts)
    sent: list[float] = []
    before = engine.stats()
    begin, left = clock(), len(prompts)
    while left:
        now = clock() - begin
        while len(sent) < len(prompts) and workload.requests[len(sent)].arrival <= now:
            engine.add(len(sent), prompts[len(sent)], workload.requests[len(sent)].output_len)
            sent.append(clock() - begin)
        if left == len(prompts) - len(sent):  # nobody is in the engine
            sleep(max(workload.requests[len(sent)].arrival - (clock() - begin), 0.0))
            continue
        news = engine.step()
        if news is None:
            sleep(_IDLE)
            continue
        now = clock() - begin
        for number, tokens, finished, from_cache in news:
            stamps[number] += [now] * tokens
            cached[number] = cached[number] if from_cache is None else from_cache
            left -= finished
    after = engine.stats()
    counters = {name: after[name] - before[name] for name in (*_COUNTERS, *_SECONDS) if name in after}
    return Measured(label or workload.name, workload, records_of(workload, stamps, sent, cached), counters)


def records_of(
    workload: Workload, stamps: list[list[float]], sent: list[float] | None = None, cached: list[int] | None = None
) -> Records:
    """Records from the second, counted from the start, at which each token of each request came out."""
    builder = RecordsBuilder(capacity=max(len(stamps), 1))
    for number, (request, times) in enumerate(zip(workload.requests, stamps, strict=True)):
        builder.add(
            request.arrival,
            sent=request.arrival if sent is None else sent[number],
            first=times[0],
            last=times[-1],
            prompt_tokens=request.prompt_len,
            output_tokens=len(times),
            cached_tokens=-1 if cached is None else cached[number],
            gaps=np.diff(times),
        )
    return builder.build()
