"""What happened to each request: columns that a load test or a simulation fills and `metrics` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.signedinteger[Any]]


class Outcome(IntEnum):
    """How a request ended. The four classes are never mixed."""

    OK = 0
    INCOMPLETE = 1
    """Cut off by the end of the run, or ended by the server before what was asked for."""
    ERROR = 2
    REFUSED = 3
    """Turned away at the door (429, 503): no work was done."""


_FLOATS = ("scheduled", "sent", "first", "last")
_INTS = ("outcome", "prompt_tokens", "output_tokens", "cached_tokens", "tenant")


@dataclass
class Records:
    """One column per quantity, one row per request, in order of `scheduled`.

    Times are seconds on one clock; NaN: it did not happen.
    """

    scheduled: Floats
    """When the request was due. Every latency counts from here."""
    sent: Floats
    """When the client really sent it (simulation: the same as scheduled)."""
    first: Floats
    """First token."""
    last: Floats
    """Last token, or the end of a request that failed."""
    outcome: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    """Prompt tokens that came from the prefix cache, by the server's own count; -1: it does not say."""
    tenant: Ints
    """Index into `tenants`."""
    tenants: list[str] = field(default_factory=lambda: [""])
    gaps: Gaps | None = None
    """Inter-token gaps of all requests, pooled; None: not measured."""

    def __len__(self) -> int:
        return self.scheduled.size

    def select(self, mask: NDArray[np.bool_]) -> Records:
        """The rows that `mask` names; the same records where it names all."""
        if mask.all():
            return self
        columns = {name: getattr(self, name)[mask] for name in _FLOATS + _INTS}
        gaps = self.gaps.select(mask) if isinstance(self.gaps, ExactGaps) else self.gaps
        return Records(**columns, tenants=self.tenants, gaps=gaps)

    @property
    def ok(self) -> NDArray[np.bool_]:
        return np.asarray(self.outcome == Outcome.OK)

    @property
    def ttft(self) -> Floats:
        """Seconds from due to the first token."""
        return self.first - self.scheduled

    @property
    def e2e(self) -> Floats:
        """Seconds from due to the last token."""
        return self.last - self.scheduled

    @property
    def tpot(self) -> Floats:
        """(last - first) / (tokens - 1), seconds; NaN for fewer than two tokens. GuideLLM calls this ITL."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.output_tokens > 1, (self.last - self.first) / (self.output_tokens - 1), np.nan)

    @property
    def lateness(self) -> Floats:
        """Seconds between due and sent: the client's own fault, or its concurrency limit."""
        return self.sent - self.scheduled


class RecordsBuilder:
    """Grows `Records` a request at a time; `row` numbers are given out in order."""

    def __init__(self, keep_gaps: bool = True, capacity: int = 1024) -> None:
        self.tenants: list[str] = []
        self._tenant_index: dict[str, int] = {}
        self._floats = {name: np.full(capacity, np.nan) for name in _FLOATS}
        self._ints = {name: np.zeros(capacity, np.int64) for name in _INTS}
        self._gaps: list[Floats] | None = [] if keep_gaps else None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        scheduled: float,
        *,
        sent: float,
        first: float = float("nan"),
        last: float = float("nan"),
        outcome: Outcome = Outcome.OK,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = -1,
        tenant: str = "",
        gaps: Sequence[float] | Floats = (),
    ) -> int:
        """Take in a finished request; its row number."""
        row = self._count
        if row == self._floats["sent"].size:
            self._floats = {name: np.concatenate([c, np.full_like(c, np.nan)]) for name, c in self._floats.items()}
            self._ints = {name: np.concatenate([c, np.zeros_like(c)]) for name, c in self._ints.items()}
        index = self._tenant_index.setdefault(tenant, len(self._tenant_index))
        if index == len(self.tenants):
            self.tenants.append(tenant)
        for name, value in zip(_FLOATS, (scheduled, sent, first, last), strict=True):
            self._floats[name][row] = value
        numbers = (int(outcome), prompt_tokens, output_tokens, cached_tokens, index)
        for name, number in zip(_INTS, numbers, strict=True):
            self._ints[name][row] = number
        if self._gaps is not None:
            self._gaps.append(np.asarray(gaps, np.float64))
        self._count += 1
        return row

    def build(self, gaps: Gaps | None = None) -> Records:
        """The records in order of `scheduled`; `gaps` where they were pooled elsewhere."""
        count = self._count
        order = np.argsort(self._floats["scheduled"][:count], kind="stable")
        columns = {name: column[:count][order] for name, column in (self._floats | self._ints).items()}
        if gaps is None and self._gaps is not None:
            gaps = ExactGaps([self._gaps[row] for row in order.tolist()])
        return Records(**columns, tenants=self.tenants or [""], gaps=gaps)


@dataclass
class ExactGaps:
    """Every gap of every request: float64 seconds per request."""

    per_request: list[Floats]

    def select(self, mask: NDArray[np.bool_]) -> ExactGaps:
        return ExactGaps([self.per_request[row] for row in np.flatnonzero(mask).tolist()])

    def pooled(self) -> Floats:
        return np.concatenate(self.per_request) if self.per_request else np.zeros(0)


class PooledGaps:
    """Gaps as counts in bins half a per cent wide: flat in memory at any number of tokens."""

    WIDTH = 1.005
    FLOOR = 1e-6

    def __init__(self) -> None:
        self.counts = np.zeros(int(np.log(1e4 / self.FLOOR) / np.log(self.WIDTH)) + 2, np.int64)
        self.total = 0.0

    def add(self, gaps: Floats, repeat: int = 1) -> None:
        """Take in gaps in seconds, each `repeat` times."""
        at = np.log(np.maximum(gaps, self.FLOOR) / self.FLOOR) / np.log(self.WIDTH)
        np.add.at(self.counts, np.minimum(at.astype(np.int64), self.counts.size - 1), repeat)
        self.total += float(gaps.sum()) * repeat

    def add_one(self, gap: float, repeat: int) -> None:
        """The same gap of `repeat` sequences, as when one step serves them all."""
        at = int(np.log(max(gap, self.FLOOR) / self.FLOOR) / np.log(self.WIDTH))
        self.counts[min(at, self.counts.size - 1)] += repeat
        self.total += gap * repeat

    @property
    def centres(self) -> Floats:
        """Seconds that stand for each bin."""
        return np.asarray(self.FLOOR * self.WIDTH ** (np.arange(self.counts.size) + 0.5))


Gaps = ExactGaps | PooledGaps
