"""Percentiles that say how much they know."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.workload.records import ExactGaps, Gaps, PooledGaps

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Percentile:
    """A percentile with its 95 % confidence interval.

    `low`/`high` are None where the sample is too small for that side: with 300 requests, p99.9 has no upper bound.
    """

    percent: float
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Distribution:
    """What is told of a quantity, in its own unit."""

    count: int = 0
    mean: float = math.nan
    std: float = math.nan
    minimum: float = math.nan
    maximum: float = math.nan
    percentiles: dict[float, Percentile] = field(default_factory=dict)

    def at(self, percent: float) -> float:
        """The percentile's value; NaN where there is no sample."""
        found = self.percentiles.get(percent)
        return math.nan if found is None else found.value

    @property
    def median(self) -> float:
        return self.at(50.0)


def distribution(values: Floats, percents: tuple[float, ...] = PERCENTILES) -> Distribution:
    """Of a sample in order of arrival (the order tells how alike neighbours are); NaN are left out.

    Values by linear interpolation, as vLLM's benchmark; std of the population. Intervals by order statistics: exact
    binomial, on a sample shrunk by how strongly neighbours resemble each other (batch means), because requests that
    queue behind each other are not independent.
    """
    values = values[~np.isnan(values)]
    if values.size == 0:
        return Distribution()
    ascending = np.sort(values)
    found = {}
    for percent in sorted({*percents, 50.0}):
        value = _interpolated(ascending, percent)
        low, high = _interval(values, ascending, value, percent / 100)
        found[percent] = Percentile(percent, value, low, high)
    low, high = float(ascending[0]), float(ascending[-1])
    return Distribution(values.size, float(values.mean()), float(values.std()), low, high, found)


def pooled(gaps: Gaps | None, percents: tuple[float, ...] = PERCENTILES) -> Distribution:
    """Of inter-token gaps. No intervals: gaps of one request are far from independent."""
    if isinstance(gaps, ExactGaps):
        values = gaps.pooled()
        if values.size == 0:
            return Distribution()
        points = [float(point) for point in np.percentile(values, [*percents])]
        found = {p: Percentile(p, v, None, None) for p, v in zip(percents, points, strict=True)}
        return Distribution(
            values.size, float(values.mean()), float(values.std()), float(values.min()), float(values.max()), found
        )
    if isinstance(gaps, PooledGaps) and gaps.counts.any():
        return _binned(gaps, percents)
    return Distribution()


def _binned(gaps: PooledGaps, percents: tuple[float, ...]) -> Distribution:
    total, centres = int(gaps.counts.sum()), gaps.centres
    upto = np.cumsum(gaps.counts)
    mean = gaps.total / total
    spread = math.sqrt(float((gaps.counts * (centres - mean) ** 2).sum()) / total)
    found = {}
    for percent in percents:
        value = float(centres[int(np.searchsorted(upto, percent / 100 * total))])
        found[percent] = Percentile(percent, value, None, None)
    seen = np.flatnonzero(gaps.counts)
    return Distribution(total, mean, spread, float(centres[seen[0]]), float(centres[seen[-1]]), found)


def _interpolated(ascending: Floats, percent: float) -> float:
    at = percent / 100 * (ascending.size - 1)
    below = int(at)
    above = min(below + 1, ascending.size - 1)
    return float(ascending[below] + (at - below) * (ascending[above] - ascending[below]))


def _interval(values: Floats, ascending: Floats, value: float, share: float) -> tuple[float | None, float | None]:
    effective = max(int(values.size / _likeness(values, value, share)), 1)
    low, high = binomial_ranks(effective, share)
    scale, last = values.size / effective, values.size - 1
    return (
        None if low is None else float(ascending[min(int((low - 1) * scale), last)]),
        None if high is None else float(ascending[min(math.ceil(high * scale) - 1, last)]),
    )


def binomial_ranks(count: int, share: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """Ranks (from 1) whose order statistics hold the `share` quantile with that confidence; None: there is none.

    P(X_(low) <= quantile) >= 1 - a/2 and P(quantile <= X_(high)) >= 1 - a/2, by the binomial distribution.
    """
    tail = (1 - confidence) / 2
    middle, spread = count * share, math.sqrt(count * share * (1 - share))
    begin, end = max(0, int(middle - 8 * spread - 8)), min(count, int(middle + 8 * spread + 8))
    upto, low, high = 0.0, None, None
    for below in range(begin, end + 1):  # `below` samples lie below the quantile
        upto += math.exp(
            math.lgamma(count + 1)
            - math.lgamma(below + 1)
            - math.lgamma(count - below + 1)
            + below * math.log(share)
            + (count - below) * math.log1p(-share)
        )
        if upto <= tail:
            low = below + 1
        if high is None and upto >= 1 - tail and below < count:
            high = below + 1
    return low, high


def _likeness(values: Floats, value: float, share: float) -> float:
    """By how much neighbours' likeness inflates the variance of "is above the percentile"; 1: independent."""
    batches = min(32, values.size // 16)
    if batches < 8:
        return 1.0
    size = values.size // batches
    above = (values[: batches * size] > value).astype(np.float64).reshape(batches, size).mean(axis=1)
    return float(max(1.0, size * above.var(ddof=1) / (share * (1 - share))))
