"""A list of requests with its provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paceline.workload.packed import PackedRequests
from paceline.workload.timed_request import IntArray, Parts, TimedRequest, WorkloadError, named_key, stream_tokens

__all__ = [
    "IntArray",
    "Parts",
    "TimedRequest",
    "Workload",
    "WorkloadError",
    "check",
    "merge",
    "named_key",
    "stream_tokens",
]


@dataclass(slots=True)
class Workload:
    """Requests in order of arrival, where they come from, and what was left out."""

    requests: Sequence[TimedRequest]
    name: str = "workload"
    arrivals: str = ""
    """The arrival process in words; every result names it."""
    timed: bool = True
    """False: the source has lengths only, and arrivals must be made."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason -> rows of the source that were left out. Printed with every result."""
    notes: list[str] = field(default_factory=list)
    source: str = ""
    attribution: str = ""
    block_size: int | None = None

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def duration(self) -> float:
        """Seconds from the first to the last arrival."""
        return self.requests[-1].arrival - self.requests[0].arrival if self.requests else 0.0

    def times(self) -> NDArray[np.float64]:
        if isinstance(self.requests, PackedRequests):
            return self.requests.arrival
        return np.array([request.arrival for request in self.requests])

    def lengths(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Tokens of every prompt and of every answer."""
        requests = self.requests
        if isinstance(requests, PackedRequests):
            return requests.prompt_len, requests.output_len
        return (
            np.fromiter((request.prompt_len for request in requests), np.int32, len(requests)),
            np.fromiter((request.output_len for request in requests), np.int32, len(requests)),
        )

    def with_times(self, times: Sequence[float] | NDArray[np.float64], arrivals: str) -> Workload:
        """The same requests at other times (as many as there are times, at most)."""
        moved: Sequence[TimedRequest]
        if isinstance(self.requests, PackedRequests):
            moved = self.requests.at(np.asarray(times, np.float64))
        else:
            moved = [replace(request, arrival=float(time)) for request, time in zip(self.requests, times, strict=False)]
        return replace(self, requests=moved, arrivals=arrivals, timed=True)

    def scaled(self, factor: float) -> Workload:
        """All times multiplied: a factor of 0.5 doubles the rate."""
        if not factor > 0:
            raise WorkloadError(f"the time scale is {factor}; it must be above 0")
        if factor == 1:
            return self
        return self.with_times(self.times() * factor, f"{self.arrivals}, time x {factor:g}")

    def at_rate(self, rate: float) -> Workload:
        """Times stretched so that the mean rate is `rate` requests per second; bursts keep their shape."""
        if not rate > 0:
            raise WorkloadError(f"the rate is {rate}; it must be above 0")
        if len(self) < 2 or self.duration <= 0:
            raise WorkloadError(f"{self.name}: {len(self)} requests over {self.duration:g} s have no rate to change")
        return self.scaled((len(self) - 1) / self.duration / rate)

    def head(self, count: int | None) -> Workload:
        """The first `count` requests."""
        return self if count is None or count >= len(self) else replace(self, requests=self.requests[:count])

    def describe(self) -> str:
        """One line: how many, how long, what was left out."""
        prompts, outputs = (int(tokens.sum()) for tokens in self.lengths())
        count = max(len(self), 1)
        line = f"{self.name}: {len(self)} requests, mean {prompts / count:.0f} tokens in, {outputs / count:.0f} out"
        if not isinstance(self.requests, PackedRequests) and any(one.after is not None for one in self.requests):
            line += f", in {len({request.session for request in self.requests})} conversations"
        elif self.timed and self.duration > 0:
            line += f", over {self.duration:.1f} s ({(len(self) - 1) / self.duration:.3g} requests/s)"
        for reason, rows in self.skipped.items():
            line += f"; {rows} left out: {reason}"
        return line


def check(workload: Workload) -> Workload:
    """The same workload; WorkloadError for the first thing in it that makes no sense."""
    if isinstance(workload.requests, PackedRequests) and workload.requests.sensible:
        return workload
    last = 0.0
    for number, request in enumerate(workload.requests):
        where = f"{workload.name}, request {number} ({request.id})"
        if not 0 <= request.arrival < float("inf"):
            raise WorkloadError(f"{where}: arrival {request.arrival} s is not a time from 0 on")
        if request.arrival < last:
            raise WorkloadError(f"{where}: arrives at {request.arrival:g} s, before its predecessor at {last:g} s")
        if request.prompt_len < 1 or request.output_len < 1:
            raise WorkloadError(f"{where}: {request.prompt_len} tokens in, {request.output_len} out; both must be >= 1")
        if request.parts and sum(length for _, length in request.parts) != request.prompt_len:
            raise WorkloadError(f"{where}: its parts do not sum to its {request.prompt_len} prompt tokens")
        last = request.arrival
    repeated = [name for name, times in Counter(request.id for request in workload.requests).items() if times > 1]
    if repeated:
        raise WorkloadError(f"{workload.name}: id {repeated[0]!r} is used more than once")
    return workload


def merge(workloads: Iterable[Workload], name: str = "mix") -> Workload:
    """Several workloads at once; ids get the name of their workload in front."""
    parts = list(workloads)
    requests = [replace(r, id=f"{part.name}/{r.id}") for part in parts for r in part.requests]
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    return Workload(
        sorted(requests, key=lambda request: request.arrival),
        name,
        " + ".join(dict.fromkeys(part.arrivals for part in parts)),
        skipped=dict(skipped),
        notes=[note for part in parts for note in part.notes],
    )
