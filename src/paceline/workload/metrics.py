"""What a run amounts to. TTFT, TPOT, ITL, E2E and goodput mean what vLLM's benchmark means by them, with one change:
time counts from when a request was *due*, not from when a busy client got round to sending it.

- TTFT: first token - due.              - E2E: last token - due.
- TPOT: (last - first) / (tokens - 1), per request with at least two tokens. GuideLLM calls this inter-token latency.
- ITL: every gap between tokens, pooled over requests, so that long answers weigh more.
- Goodput: requests per second that meet all targets. A one-token answer counts as TPOT 0; a failed one is never good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.workload.percentiles import PERCENTILES, Distribution, distribution, pooled
from paceline.workload.records import ExactGaps, Outcome, Records
from paceline.workload.requests import WorkloadError

TARGETS = ("ttft", "tpot", "e2e")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """A stretch of a run, in seconds on the records' clock."""

    begin: float
    end: float
    settled: bool = True
    """False: the run was too short to have a steady state."""

    @property
    def length(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Little:
    """Little's law: mean in flight = rate x mean time in system."""

    in_flight: float
    """Time average, counted."""
    rate: float
    """Requests per second that arrived."""
    time: float
    """Mean seconds in the system of those that arrived."""

    @property
    def product(self) -> float:
        return self.rate * self.time

    @property
    def residual(self) -> float:
        """(in flight - rate x time) / in flight; 0 in a steady state."""
        return (self.in_flight - self.product) / self.in_flight if self.in_flight > 0 else 0.0


@dataclass(frozen=True)
class Goodput:
    """How many requests met the targets, among all that were due (failed ones count as missed)."""

    targets: dict[str, float]
    """Seconds, by name in TARGETS."""
    share: float
    """Met all."""
    per_target: dict[str, float]
    """Met this one."""
    rate: float
    """Requests per second that met all."""
    tokens_per_second: float
    """Output tokens of those."""


@dataclass(frozen=True)
class Stretch:
    """What is told of one stretch of the run: the whole, or its steady part."""

    window: Window
    outcomes: dict[str, int]
    """By the name of the Outcome, in lower case."""
    request_rate: float
    """Requests completed per second."""
    arrival_rate: float
    output_rate: float
    """Output tokens per second."""
    total_rate: float
    """Input and output tokens per second."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    client_ttft: Distribution
    """TTFT from when it was sent: what other tools report."""
    lateness: Distribution
    little: Little
    goodput: Goodput | None

    @property
    def total(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class Stability:
    """Whether the load was one the system could hold."""

    label: str
    """stable, backlogged (the queue grew), overloaded (and finished requests fell behind arrivals) or unknown."""
    in_flight_slope: float
    """Requests per second by which the number in flight grew."""
    completion_ratio: float
    """Completions over arrivals in the steady window."""


@dataclass(frozen=True)
class Summary:
    """A run."""

    whole: Stretch
    steady: Stretch
    stability: Stability
    per_tenant: dict[str, Stretch] = field(default_factory=dict)


def summarise(
    records: Records,
    targets: dict[str, float] | None = None,
    percents: tuple[float, ...] = PERCENTILES,
    window: Window | None = None,
) -> Summary:
    """`targets` in seconds by name; `window` instead of the one `steady_window` finds."""
    if len(records) == 0:
        raise WorkloadError("there are no requests to summarise")
    check_targets(targets or {})
    whole = Window(float(records.scheduled[0]), _last(records))
    steady = window or steady_window(records)
    tenants = {}
    if len(records.tenants) > 1:
        for index, name in enumerate(records.tenants):
            mine = records.select(records.tenant == index)
            if len(mine):
                tenants[name] = stretch(mine, whole, targets, percents)
    return Summary(
        stretch(records, whole, targets, percents),
        stretch(records, steady, targets, percents),
        stability(records),
        tenants,
    )


def check_targets(targets: dict[str, float]) -> None:
    """WorkloadError for a target that has no name or value."""
    for name, limit in targets.items():
        if name not in TARGETS:
            raise WorkloadError(f"target {name!r}: it must be one of {', '.join(TARGETS)}")
        if not 0 < limit < math.inf:
            raise WorkloadError(f"target {name}: {limit} s is not a limit; it must be above 0")


def steady_window(records: Records) -> Window:
    """From when the system has filled to the last arrival: neither start-up nor drain is in it.

    The start is the later of a tenth of the arrivals and the median time a request spends in the system, but at most
    half-way. The whole run, and not settled, where fewer than 20 arrivals are left, or where the median request takes
    longer than a third of the arrivals' span.
    """
    begin, end = float(records.scheduled[0]), float(records.scheduled[-1])
    stay = np.nan_to_num(_ends(records) - records.scheduled, nan=0.0)
    typical = float(np.median(stay))
    tenth = float(records.scheduled[len(records) // 10])
    start = min(max(tenth, begin + typical), begin + (end - begin) / 2)
    if int((records.scheduled >= start).sum()) < 20 or typical > (end - begin) / 3 or end <= start:
        return Window(begin, max(_last(records), begin + 1e-9), False)
    return Window(start, end)


def stretch(records: Records, window: Window, targets: dict[str, float] | None, percents: tuple[float, ...]) -> Stretch:
    """Latencies of the requests due in the window; rates of what was finished and emitted within it."""
    ends = _ends(records)
    due = records.select((records.scheduled >= window.begin) & (records.scheduled <= window.end))
    ok = due.select(due.ok)
    done = records.ok & (ends >= window.begin) & (ends <= window.end)
    seconds = max(window.length, 1e-9)
    emitted = float((records.output_tokens * _overlap(records.first, records.last, window)).sum())
    read = int(
        records.prompt_tokens[records.ok & (records.first >= window.begin) & (records.first <= window.end)].sum()
    )
    known = ok.cached_tokens >= 0
    return Stretch(
        window=window,
        outcomes={kind.name.lower(): int((due.outcome == kind).sum()) for kind in Outcome},
        request_rate=float(done.sum()) / seconds,
        arrival_rate=len(due) / seconds,
        output_rate=emitted / seconds,
        total_rate=(emitted + read) / seconds,
        input_tokens=int(ok.prompt_tokens.sum()),
        output_tokens=int(ok.output_tokens.sum()),
        cached_tokens=int(ok.cached_tokens[known].sum()) if known.any() else None,
        ttft=distribution(ok.ttft, percents),
        tpot=distribution(ok.tpot, percents),
        itl=pooled(ok.gaps, percents),
        e2e=distribution(ok.e2e, percents),
        client_ttft=distribution(ok.first - ok.sent, percents),
        lateness=distribution(due.lateness, percents),
        little=little(records, window),
        goodput=goodput(due, targets, seconds) if targets else None,
    )


def goodput(records: Records, targets: dict[str, float], seconds: float) -> Goodput:
    """Of all these requests, over that many seconds."""
    met = meets(records, targets)
    joint = np.logical_and.reduce(list(met.values()))
    count = max(len(records), 1)
    return Goodput(
        dict(targets),
        float(joint.sum()) / count,
        {name: float(column.sum()) / count for name, column in met.items()},
        float(joint.sum()) / seconds,
        float(records.output_tokens[joint].sum()) / seconds,
    )


def meets(records: Records, targets: dict[str, float]) -> dict[str, NDArray[np.bool_]]:
    """Target -> bool[requests]: it ended well and within the limit."""
    values = {"ttft": records.ttft, "tpot": np.nan_to_num(records.tpot, nan=0.0), "e2e": records.e2e}
    with np.errstate(invalid="ignore"):
        return {name: records.ok & (values[name] <= limit) for name, limit in targets.items()}


def little(records: Records, window: Window) -> Little:
    """Both sides of Little's law over the window. What arrived in it is followed to its end, even past the window."""
    ends = _ends(records)
    alive = ~np.isnan(ends)
    scheduled, ends = records.scheduled[alive], ends[alive]
    seconds = max(window.length, 1e-9)
    inside = np.clip(ends, window.begin, window.end) - np.clip(scheduled, window.begin, window.end)
    arrived = (scheduled >= window.begin) & (scheduled <= window.end)
    stay = float((ends - scheduled)[arrived].mean()) if arrived.any() else 0.0
    return Little(float(inside.sum()) / seconds, float(arrived.sum()) / seconds, stay)


def in_flight(records: Records, points: int = 200) -> tuple[Floats, Floats]:
    """(times, requests in the system at each): `points` times over the run."""
    ends = _ends(records)
    alive = ~np.isnan(ends)
    begin, end = float(records.scheduled[0]), _last(records)
    at = np.linspace(begin, end, points)
    came = np.searchsorted(np.sort(records.scheduled[alive]), at, side="right")
    went = np.searchsorted(np.sort(ends[alive]), at, side="right")
    return at, (came - went).astype(np.float64)


_FEWEST = 20  # requests by which to tell whether a queue grows


def stability(records: Records) -> Stability:
    """Backlogged: while requests arrive (the first tenth apart), the line through the number in flight rises by more
    than half its mean and three standard errors. Overloaded: less than 90 % of what arrived was finished as well.
    Unknown: there are too few requests to tell.
    """
    window = Window(float(records.scheduled[len(records) // 10]), float(records.scheduled[-1]))
    at, count = in_flight(records, 400)
    inside = (at >= window.begin) & (at <= window.end)
    at, count = at[inside], count[inside]
    ends = _ends(records)
    done = float(((ends >= window.begin) & (ends <= window.end)).sum())
    came = float(((records.scheduled >= window.begin) & (records.scheduled <= window.end)).sum())
    ratio = done / came if came else 1.0
    if len(records) < _FEWEST or at.size < 8 or window.length <= 0:
        return Stability("unknown", 0.0, ratio)
    centred = at - at.mean()
    slope = float((centred * count).sum() / (centred**2).sum())
    error = _slope_error(centred, count - count.mean() - slope * centred)
    growth = slope * window.length
    grows = slope > 3 * error and growth > 0.5 * max(float(count.mean()), 1.0)
    if not grows:
        return Stability("stable", slope, ratio)
    return Stability("overloaded" if ratio < 0.9 else "backlogged", slope, ratio)


def _slope_error(centred: Floats, rest: Floats) -> float:
    # Neighbouring samples of a queue are alike: count about 20 independent ones.
    independent = min(rest.size, 20)
    return math.sqrt(float((rest**2).mean()) / max(float((centred**2).mean()), 1e-30) / max(independent - 2, 1))


def _ends(records: Records) -> Floats:
    return records.last


def _last(records: Records) -> float:
    return float(np.nanmax(np.append(_ends(records), records.scheduled[-1])))


def _overlap(first: Floats, last: Floats, window: Window) -> Floats:
    """Share of each request's tokens that fell into the window, taken as even from its first to its last."""
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.clip(last, window.begin, window.end) - np.clip(first, window.begin, window.end)
        share = np.where(last > first, inside / (last - first), (first >= window.begin) & (first <= window.end))
    return np.nan_to_num(share, nan=0.0)


def output_peak(records: Records) -> float:
    """Most output tokens in any one second, from exact gaps; NaN where they were pooled."""
    if not isinstance(records.gaps, ExactGaps):
        return math.nan
    stamps = [
        first + np.concatenate([[0.0], np.cumsum(gaps)])
        for first, gaps in zip(records.first, records.gaps.per_request, strict=True)
        if not math.isnan(first)
    ]
    if not stamps:
        return 0.0
    at = np.concatenate(stamps)
    return float(np.bincount((at - at.min()).astype(np.int64)).max())
