"""What a simulated run leaves behind: one row per request in plain columns, and running totals."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.workload.records import Outcome, PooledGaps, Records

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.signedinteger[Any]]

_FLUSH = 8192  # gaps collected before they are counted
_SAMPLES = 2000  # of a replica's state, at most


class RunLog:
    """Columns over the requests of a run, in the order of the workload: about 50 bytes a request, of any length."""

    def __init__(self, count: int) -> None:
        self.scheduled: Floats = np.full(count, np.nan)  # when it was due
        self.started: Floats = np.full(count, np.nan)  # first put into a step
        self.first: Floats = np.full(count, np.nan)  # first token
        self.last: Floats = np.full(count, np.nan)  # its latest token
        self.outcome: npt.NDArray[np.int8] = np.full(count, Outcome.INCOMPLETE, np.int8)
        self.tokens: npt.NDArray[np.int32] = np.zeros(count, np.int32)  # generated
        self.cached: npt.NDArray[np.int32] = np.full(count, -1, np.int32)
        self.preemptions: npt.NDArray[np.int16] = np.zeros(count, np.int16)
        self.replica: npt.NDArray[np.int16] = np.full(count, -1, np.int16)
        self.gaps = PooledGaps()
        self.messages: dict[str, int] = {}  # why requests were refused or given up -> how many
        self._pending: list[Floats] = []
        self._weights: list[int] = []
        self._single: list[float] = []
        self._single_weights: list[int] = []
        self._size = 0

    def add_gaps(self, gaps: Floats, weight: int = 1) -> None:
        """Gaps between tokens, each of `weight` sequences; NaN: there was no token before."""
        self._pending.append(gaps)
        self._weights.append(weight)
        self._size += gaps.size
        if self._size > _FLUSH:
            self.flush()

    def add_gap(self, gap: float, weight: int) -> None:
        """One gap between tokens, of `weight` sequences."""
        self._single.append(gap)
        self._single_weights.append(weight)
        self._size += 1

    def flush(self) -> None:
        """Count what was collected."""
        gaps = np.concatenate([*self._pending, self._single])
        weights = np.repeat(
            np.array([*self._weights, *self._single_weights], np.int64),
            [*(part.size for part in self._pending), *(1 for _ in self._single)],
        )
        self._pending, self._weights, self._single, self._single_weights, self._size = [], [], [], [], 0
        known = ~np.isnan(gaps)
        if not known.all():
            gaps, weights = gaps[known], weights[known]
        pool = self.gaps
        bins = (np.log(np.maximum(gaps, pool.FLOOR) / pool.FLOOR) / np.log(pool.WIDTH)).astype(np.int64)
        np.minimum(bins, pool.counts.size - 1, out=bins)
        counted = np.bincount(bins, weights).astype(np.int64)
        pool.counts[: counted.size] += counted
        pool.total += float((gaps * weights).sum())

    def say(self, message: str) -> None:
        """Count a reason."""
        self.messages[message] = self.messages.get(message, 0) + 1

    def records(self, prompt_tokens: Ints, tenant: Ints, tenants: list[str], later: float = 0.0) -> Records:
        """For the metrics, which want requests in the order they were due. Clients have tokens so many seconds
        `later` than they were made."""
        self.flush()
        known: slice | npt.NDArray[np.intp] = slice(None)
        if not (self.scheduled[1:] >= self.scheduled[:-1]).all() or np.isnan(self.scheduled[:1]).any():
            order = np.argsort(self.scheduled, kind="stable")
            known = order[~np.isnan(self.scheduled[order])]
        due = self.scheduled[known]
        return Records(
            scheduled=due,
            sent=due,
            first=self.first[known] + later if later else self.first[known],
            last=self.last[known] + later if later else self.last[known],
            outcome=self.outcome[known],
            prompt_tokens=prompt_tokens[known],
            output_tokens=self.tokens[known],
            cached_tokens=self.cached[known],
            tenant=tenant[known],
            tenants=tenants,
            gaps=self.gaps,
        )


def without_numbers(message: str) -> str:
    """So that alike messages are counted together."""
    return "".join("#" if letter.isdigit() else letter for letter in message).replace("##", "#").replace("##", "#")


@dataclass
class Usage:
    """What a replica did, as integrals over time."""

    seconds: float = 0.0  # with something inside
    running: float = 0.0  # sequence-seconds in the batch
    waiting: float = 0.0
    kv: float = 0.0  # share of the blocks that are held, times seconds
    kv_histogram: Floats = field(default_factory=lambda: np.zeros(102))  # seconds by held share, in hundredths
    steps: int = 0
    fast_steps: int = 0  # of these, taken together with others
    samples: array[float] = field(default_factory=lambda: array("d"))
    """Time, running, waiting, held share, tokens generated; again and again, but at most so many times over any run."""
    _interval: float = 0.05
    _due: float = 0.0

    def note(self, now: float, seconds: float, running: int, waiting: int, share: float, generated: int) -> None:
        """So it was for the last `seconds` up to `now`. `generated`: tokens since the start."""
        self.seconds += seconds
        self.running += running * seconds
        self.waiting += waiting * seconds
        self.kv += share * seconds
        self.kv_histogram[int(share * 100)] += seconds
        if now >= self._due:
            self._sample((now, running, waiting, share, generated))

    def _sample(self, state: tuple[float, int, int, float, int]) -> None:
        """Remember how things are; more and more seldom, so that they stay few."""
        self.samples.extend(state)
        if len(self.samples) >= len(state) * _SAMPLES:
            self.samples, self._interval = array("d", self.table[::2].tobytes()), self._interval * 2
        self._due = state[0] + self._interval

    @property
    def table(self) -> Floats:
        """`samples` as [times, 5]."""
        return np.frombuffer(self.samples, np.float64).reshape(-1, 5)

    def merge(self, other: Usage) -> None:
        self.seconds += other.seconds
        self.running += other.running
        self.waiting += other.waiting
        self.kv += other.kv
        self.kv_histogram = self.kv_histogram + other.kv_histogram
        self.steps += other.steps
        self.fast_steps += other.fast_steps

    def kv_percentile(self, percent: float) -> float:
        """Held share that is not exceeded for `percent` of the busy time, to a hundredth."""
        total = self.kv_histogram.cumsum()
        if not total[-1]:
            return 0.0
        return float(min(np.searchsorted(total, total[-1] * percent / 100), 100)) / 100
