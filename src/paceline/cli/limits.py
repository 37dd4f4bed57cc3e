"""Targets as people type them, the same for every command: limits of latencies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from paceline.cli.flag_sets import flag
from paceline.errors import ConfigError

NAMES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e", "e2el": "e2e"}
_UNITS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}


class Limit(NamedTuple):
    """A percentile of a latency, and what it may come to."""

    metric: str
    percent: float
    seconds: float


@dataclass(frozen=True)
class LimitFlags:
    """What should hold, in any of its spellings."""

    goodput: Annotated[
        list[str] | None,
        flag("Targets as vLLM's flag has them, in ms: ttft:500 tpot:50 e2e:5000; or with a unit; several times."),
    ] = None
    ttft_p99: Annotated[str | None, flag("Limit with its unit, such as 500ms or 0.5s.")] = None
    tpot_p99: Annotated[str | None, flag("Limit with its unit.")] = None
    e2e_p99: Annotated[str | None, flag("Limit with its unit.")] = None
    target: Annotated[list[str] | None, flag("METRIC:pPERCENT:LIMIT, such as ttft:p95:300ms; several times.")] = None

    def limits(self) -> list[Limit]:
        """All of them; a target of --goodput is one of the 99th percentile.

        ConfigError for what is no target, and for two limits of one figure: one of them would say nothing.
        """
        found: dict[tuple[str, float], tuple[str, Limit]] = {}
        for name, text, limit in self._spelled():
            other, first = found.setdefault((limit.metric, limit.percent), (f"{name} {text}", limit))
            if first.seconds != limit.seconds:
                raise ConfigError(name, text, f"left out beside {other}, another limit of the same figure")
        return [limit for _, limit in found.values()]

    def _spelled(self) -> Iterator[tuple[str, str, Limit]]:
        """(flag, text, limit), in the order of the flags."""
        for text in (" ".join(self.goodput or [])).replace(",", " ").split():
            yield "--goodput", text, _of_goodput(text)
        for metric in ("ttft", "tpot", "e2e"):
            if (text := getattr(self, f"{metric}_p99")) is not None:
                yield f"--{metric}-p99", text, Limit(metric, 99.0, seconds(f"--{metric}-p99", text))
        for text in self.target or []:
            yield "--target", text, _of_target(text)

    def targets(self) -> dict[str, float]:
        """Metric -> the tightest of its limits, seconds."""
        found: dict[str, float] = {}
        for limit in self.limits():
            found[limit.metric] = min(limit.seconds, found.get(limit.metric, math.inf))
        return found


@dataclass(frozen=True)
class ReportedFlags(LimitFlags):
    """Targets, and which percentiles are shown."""

    percentiles: Annotated[str, flag("Which to report.", "--percentiles", "--metric-percentiles")] = "50,90,95,99,99.9"

    def percents(self) -> tuple[float, ...]:
        """Those asked for, those of the targets, and 50, 95 and 99."""
        try:
            found = tuple(sorted({float(one) for one in self.percentiles.split(",")}))
        except ValueError:
            found = ()
        if not found or not all(0 < one < 100 for one in found):
            raise ConfigError("--percentiles", self.percentiles, "numbers between 0 and 100, such as 50,95,99")
        return tuple(sorted({*found, 50.0, 95.0, 99.0, *(limit.percent for limit in self.limits())}))


def seconds(name: str, text: str) -> float:
    """A time with its unit, such as 500ms or 0.5s. ConfigError for a number without one: who knows which was meant."""
    plain = text.strip().lower()
    unit = next((ending for ending in _UNITS if plain.endswith(ending)), None)
    value = _positive(plain if unit is None else plain.removesuffix(unit))
    if unit is None and value is not None:
        raise ConfigError(name, text, f"a time with its unit: {value:g}ms (which is {value / 1e3:g}s), or {value:g}s")
    if unit is None or value is None:
        raise ConfigError(name, text, "a time above 0 with its unit, such as 500ms or 0.5s")
    return value * _UNITS[unit]


def _of_goodput(text: str) -> Limit:
    name, _, limit = text.partition(":")
    value = _positive(limit)
    if name not in NAMES or (value is None and not limit.lower().endswith("s")):
        raise ConfigError("--goodput", text, "NAME:MILLISECONDS with ttft, tpot or e2e, such as ttft:500 or ttft:0.5s")
    return Limit(NAMES[name], 99.0, seconds(f"--goodput {text}", limit) if value is None else value / 1e3)


def _of_target(text: str) -> Limit:
    metric, _, rest = text.partition(":")
    percent, _, limit = rest.partition(":")
    share = _positive(percent.removeprefix("p"))
    if metric not in NAMES or share is None or share >= 100 or not limit:
        raise ConfigError("--target", text, "METRIC:pPERCENT:LIMIT with ttft, tpot or e2e, as ttft:p95:300ms")
    return Limit(NAMES[metric], share, seconds(f"--target {text}", limit))


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
