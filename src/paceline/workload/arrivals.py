"""When requests arrive: each process is a frozen object with `times(count, seed)` and `chunks(seed)`.

Arrivals assumed Poisson when they are not are the commonest fault of a capacity plan, so every process says its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.workload.requests import WorkloadError

Times = NDArray[np.float64]
_CHUNK = 4096


class Arrivals(Protocol):
    """A point process from 0 on, in seconds."""

    def chunks(self, seed: int) -> Iterator[Times]:
        """Endless (but for a trace) ascending times, a few thousand at a time: memory stays flat."""

    def describe(self) -> str:
        """In words, for reports."""


def times(arrivals: Arrivals, count: int, seed: int = 0) -> Times:
    """The first `count` times of a process, float64 seconds, ascending. Fewer only from a trace that ends."""
    taken: list[Times] = []
    left = count
    for chunk in arrivals.chunks(seed):
        taken.append(chunk[:left])
        left -= taken[-1].size
        if left <= 0:
            break
    return np.concatenate(taken) if taken else np.zeros(0)


@dataclass(frozen=True)
class AllAtOnce:
    """Everything at time 0: shows the most a server can do; its TTFT is only queueing."""

    def chunks(self, seed: int) -> Iterator[Times]:
        while True:
            yield np.zeros(_CHUNK)

    def describe(self) -> str:
        return "all at once"


@dataclass(frozen=True)
class Constant:
    """One request every 1/rate seconds, the first at 0."""

    rate: float

    def __post_init__(self) -> None:
        _positive("rate", self.rate)

    def chunks(self, seed: int) -> Iterator[Times]:
        begin = 0
        while True:
            yield np.arange(begin, begin + _CHUNK) / self.rate
            begin += _CHUNK

    def describe(self) -> str:
        return f"constant, {self.rate:g}/s"


@dataclass(frozen=True)
class Gamma:
    """Independent gamma gaps. burstiness 1 is Poisson; below 1 burstier, above 1 more even (CV squared = 1/burstiness).

    The same meaning as `--burstiness` of vLLM's benchmark, without its rescaling of the last time.
    """

    rate: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        _positive("rate", self.rate)
        _positive("burstiness", self.burstiness)

    def chunks(self, seed: int) -> Iterator[Times]:
        for unit in _unit_gaps(seed, self.burstiness):
            yield unit / self.rate

    def describe(self) -> str:
        if self.burstiness == 1:
            return f"Poisson, {self.rate:g}/s"
        return f"gamma gaps, {self.rate:g}/s, burstiness {self.burstiness:g} (CV {self.burstiness**-0.5:.2g})"


def Poisson(rate: float) -> Gamma:
    """Independent exponential gaps."""
    return Gamma(rate, 1.0)


@dataclass(frozen=True)
class Ramp:
    """A rate that goes from `start` to `end` requests/s over `duration` seconds, then stays; gaps as Gamma's."""

    start: float
    end: float
    duration: float
    shape: str = "linear"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        _positive("ramp end rate", self.end)
        _positive("ramp duration", self.duration)
        _positive("burstiness", self.burstiness)
        if self.shape not in ("linear", "exponential"):
            raise WorkloadError(f"ramp shape {self.shape!r}: it must be linear or exponential")
        if self.start < 0 or (self.shape == "exponential" and self.start <= 0):
            raise WorkloadError(f"ramp start rate {self.start}: it must be 0 or more (above 0 for an exponential ramp)")

    def chunks(self, seed: int) -> Iterator[Times]:
        grid = np.linspace(0.0, self.duration, 2049)
        share = grid / self.duration
        if self.shape == "linear":
            rates = self.start + (self.end - self.start) * share
        else:
            rates = self.start * (self.end / self.start) ** share
        yield from _rescaled(grid, rates, seed, self.burstiness)

    def describe(self) -> str:
        return f"{self.shape} ramp, {self.start:g} to {self.end:g}/s over {self.duration:g} s"


@dataclass(frozen=True)
class RateCurve:
    """A rate that changes: `rates[i]` requests/s from `starts[i]` seconds on; the last one stays. Gaps as Gamma's."""

    starts: tuple[float, ...]
    rates: tuple[float, ...]
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        _positive("burstiness", self.burstiness)
        if not self.starts or len(self.starts) != len(self.rates) or list(self.starts) != sorted(set(self.starts)):
            raise WorkloadError("a rate curve needs as many rates as start times, and ascending start times")
        if self.starts[0] != 0 or min(self.rates) < 0 or self.rates[-1] <= 0:
            raise WorkloadError("a rate curve starts at 0 s, has no rate below 0, and a last rate above 0")

    def chunks(self, seed: int) -> Iterator[Times]:
        # Two points per piece make the steps of the cumulative rate exact.
        grid = np.array([*self.starts, self.starts[-1] + 1.0])
        area = np.concatenate([[0.0], np.cumsum(np.diff(grid) * np.array(self.rates))])
        yield from _inverted(grid, area, self.rates[-1], seed, self.burstiness)

    def describe(self) -> str:
        return f"varying rate, {min(self.rates):g} to {max(self.rates):g}/s, burstiness {self.burstiness:g}"


@dataclass(frozen=True)
class TraceTimes:
    """The times of a trace as they are, multiplied by `scale`; ends with the trace."""

    at: tuple[float, ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive("time scale", self.scale)

    def chunks(self, seed: int) -> Iterator[Times]:
        yield np.array(self.at, np.float64) * self.scale

    def describe(self) -> str:
        return "trace timestamps" + ("" if self.scale == 1 else f", time x {self.scale:g}")


def spread_ticks(at: Times, seed: int = 0) -> Times:
    """Times that sit on ticks, spread evenly at random to the next tick, in order.

    Some traces round their arrivals (one of them to 3 s); replayed raw, every tick is a burst that never happened.
    """
    if at.size < 2:
        return np.array(at)
    ticks, where = np.unique(at, return_inverse=True)
    gaps = np.diff(ticks)
    width = np.append(gaps, np.median(gaps) if gaps.size else 0.0)
    spread = at + np.random.default_rng(seed).random(at.size) * width[where]
    ordered: Times = np.sort(spread)
    return ordered


def dispersion(at: Times, width: float) -> float:
    """Variance over mean of the counts in bins of `width` seconds: 1 for Poisson, above for bursts. NaN: too short."""
    if at.size < 2 or at[-1] - at[0] < 4 * width:
        return float("nan")
    counts = np.bincount(((at - at[0]) / width).astype(np.int64))[:-1]
    return float(counts.var() / counts.mean()) if counts.mean() > 0 else float("nan")


def gap_cv(at: Times) -> float:
    """Standard deviation over mean of the gaps: 1 for Poisson. NaN below three arrivals."""
    if at.size < 3:
        return float("nan")
    gaps = np.diff(at)
    return float(gaps.std() / gaps.mean()) if gaps.mean() > 0 else float("nan")


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise WorkloadError(f"{name} {value}: it must be a finite number above 0")


def _unit_gaps(seed: int, burstiness: float) -> Iterator[Times]:
    """Ascending times of a process of rate 1."""
    generator = np.random.default_rng(seed)
    now = 0.0
    while True:
        chunk = now + np.cumsum(generator.gamma(burstiness, 1.0 / burstiness, _CHUNK))
        now = float(chunk[-1])
        yield chunk


def _rescaled(grid: Times, rates: Times, seed: int, burstiness: float) -> Iterator[Times]:
    area = np.concatenate([[0.0], np.cumsum(np.diff(grid) * (rates[1:] + rates[:-1]) / 2)])
    yield from _inverted(grid, area, float(rates[-1]), seed, burstiness)


def _inverted(grid: Times, area: Times, last_rate: float, seed: int, burstiness: float) -> Iterator[Times]:
    """Unit-rate times sent through the inverse of the cumulative rate, which goes on at `last_rate`."""
    for unit in _unit_gaps(seed, burstiness):
        at = np.interp(unit, area, grid)
        beyond = unit > area[-1]
        at[beyond] = grid[-1] + (unit[beyond] - area[-1]) / last_rate
        yield at
