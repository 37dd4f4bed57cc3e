"""How much one replica, or a cluster, carries within targets: found by simulating it at one rate after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import ConfigError
from paceline.sim.cluster import ReplicaSpec, Run, simulate
from paceline.sim.router import router
from paceline.workload.arrivals import Poisson, times
from paceline.workload.metrics import TARGETS, Stretch, Summary, Window, summarise
from paceline.workload.requests import TimedRequest, Workload

_SETTLED = 0.02  # a rate is known to this share


@dataclass(frozen=True)
class Target:
    """A percentile that must not be above a limit."""

    metric: str  # of TARGETS
    percent: float
    seconds: float

    def __post_init__(self) -> None:
        if self.metric not in TARGETS:
            raise ConfigError("target", self.metric, "for one of " + ", ".join(TARGETS))
        if not 0 < self.percent < 100:
            raise ConfigError("target percentile", self.percent, "between 0 and 100")
        if not 0 < self.seconds < math.inf:
            raise ConfigError(f"target {self.metric} p{self.percent:g}", self.seconds, "above 0 seconds")

    def __str__(self) -> str:
        return f"{self.metric.upper()} p{self.percent:g} <= {self.seconds * 1e3:g} ms"

    def value(self, stretch: Stretch) -> float:
        """What was reached, seconds."""
        return getattr(stretch, self.metric).at(self.percent)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Trial:
    """One simulated rate."""

    rate: float  # requests/s offered
    replicas: int
    run: Run
    summary: Summary
    missed: tuple[Target, ...]

    @property
    def meets(self) -> bool:
        """All targets, with nothing lost, and not only because the run ended before the backlog was felt."""
        return not self.missed and self.lost == 0 and self.summary.stability.label != "overloaded"

    @property
    def stretch(self) -> Stretch:
        return self.summary.steady

    @property
    def lost(self) -> int:
        """Requests that did not end well."""
        outcomes = self.summary.whole.outcomes
        return sum(outcomes.values()) - outcomes["ok"]


@dataclass(frozen=True)
class Traffic:
    """What arrives: a workload whose lengths and bursts are kept at any rate, for as long as is asked for."""

    workload: Workload
    arrivals: str = "trace"  # or "poisson": the workload's requests at times of their own
    seed: int = 0

    def __post_init__(self) -> None:
        if self.arrivals not in ("trace", "poisson"):
            raise ConfigError("--arrivals", self.arrivals, "trace or poisson")
        if self.arrivals == "trace" and not self.workload.timed:
            raise ConfigError("--arrivals", "trace", "poisson for a workload without times")

    def at(self, rate: float, count: int) -> Workload:
        """`count` requests at a mean of `rate` a second."""
        workload = self._start_elsewhere()
        rounds = -(-count // len(workload))
        if rounds > 1:
            workload = _repeated(workload, rounds)
        workload = _typical(workload, count)
        if self.arrivals == "poisson":
            process = Poisson(rate)
            return workload.with_times(times(process, len(workload), self.seed), process.describe())
        return workload.at_rate(rate)

    def _start_elsewhere(self) -> Workload:
        """Another seed begins the trace at another place, and goes round."""
        workload = self.workload
        if not self.seed or len(workload) < 4 or any(request.after is not None for request in workload.requests):
            return workload
        start = self.seed * 7919 % len(workload)
        period = _period(workload)
        first = workload.requests[start].arrival
        turned = [replace(one, arrival=one.arrival - first) for one in workload.requests[start:]]
        turned += [replace(one, arrival=one.arrival - first + period) for one in workload.requests[:start]]
        return replace(workload, requests=turned)

    def describe(self) -> str:
        if self.arrivals == "poisson":
            return "Poisson arrivals; requests of " + self.workload.describe()
        return "trace timestamps, time scaled (bursts keep their shape); " + self.workload.describe()


def _typical(workload: Workload, count: int) -> Workload:
    """`count` requests in a row whose tokens are on average as many as the whole workload's."""
    total = len(workload)
    if count >= total:
        return workload
    tokens = np.array([(one.prompt_len, one.output_len) for one in workload.requests], np.float64)
    sums = np.concatenate([np.zeros((1, 2)), np.cumsum(tokens, axis=0)])
    starts = np.arange(0, total - count + 1, max(1, count // 50))
    means = (sums[starts + count] - sums[starts]) / count
    best = int(starts[np.argmin(np.abs(np.log(means / tokens.mean(axis=0))).sum(axis=1))])
    first = workload.requests[best].arrival
    chosen = [replace(one, arrival=one.arrival - first) for one in workload.requests[best : best + count]]
    return replace(workload, requests=chosen)


def _period(workload: Workload) -> float:
    return workload.duration * len(workload) / max(len(workload) - 1, 1)


def _repeated(workload: Workload, rounds: int) -> Workload:
    """The trace again and again. Prompts come back in the first round's form only if they are shared within it."""
    period = _period(workload)
    requests: list[TimedRequest] = []
    for number in range(rounds):
        for one in workload.requests:
            if number == 0:
                requests.append(one)
                continue
            parts = tuple((key + (number << 40), length) for key, length in one.parts)
            requests.append(
                replace(
                    one,
                    id=f"{one.id}~{number}",
                    arrival=one.arrival + number * period,
                    parts=parts,
                    session=f"{one.session}~{number}" if one.session else "",
                )
            )
    return replace(workload, requests=requests)


def trial(
    traffic: Traffic,
    spec: ReplicaSpec,
    targets: tuple[Target, ...],
    rate: float,
    count: int,
    replicas: int = 1,
    router_name: str = "least-load",
) -> Trial:
    """Simulate one rate."""
    workload = traffic.at(rate, count)
    run = simulate(workload, spec, replicas, router(router_name, traffic.seed))
    goals = {target.metric: target.seconds for target in targets}
    percents = tuple(sorted({50.0, 95.0, 99.0, *(target.percent for target in targets)}))
    summary = summarise(run.records, goals or None, percents)
    missed = tuple(target for target in targets if not target.value(summary.steady) <= target.seconds)
    return Trial(rate, replicas, run, summary, missed)


@dataclass(frozen=True)
class Capacity:
    """The highest rate that was seen to meet the targets, and the lowest above it that was seen not to."""

    rate: float  # requests/s; 0: not even the lowest rate tried
    at: Trial  # the best trial, or the one of the lowest rate
    beyond: Trial | None  # the lowest that failed; None: all met


def capacity(
    traffic: Traffic,
    spec: ReplicaSpec,
    targets: tuple[Target, ...],
    count: int,
    start: float,
    tolerance: float = _SETTLED,
    progress: Callable[[str], None] = lambda text: None,
) -> Capacity:
    """Bisection from a first guess. The targets are judged on the steady part of each run."""

    def tried(rate: float) -> Trial:
        one = trial(traffic, spec, targets, rate, count)
        progress(f"{rate:.3g} requests/s: {'meets' if one.meets else 'misses'}")
        return one

    low: Trial | None = None
    high: Trial | None = None
    rate = start
    while low is None or high is None:
        one = tried(rate)
        if one.meets:
            low = one
            rate *= 1.25
            if rate > 2 * start:  # the run is too short to show that this cannot last
                return Capacity(low.rate, low, None)
        else:
            high = one
            if low is None:
                rate /= 1.25 if rate > start / 2 else 2.0
                if rate < start / 300:
                    return Capacity(0.0, one, one)
    while high.rate / low.rate > 1 + tolerance:
        one = tried(math.sqrt(low.rate * high.rate))
        low, high = (one, high) if one.meets else (low, one)
    return Capacity(low.rate, low, high)


def first_guess(traffic: Traffic, spec: ReplicaSpec) -> float:
    """Requests/s that would keep a replica busy all the time with mean requests: a bound from step times alone."""
    requests = traffic.workload.requests[:2000]
    inputs = sum(request.prompt_len for request in requests) / len(requests)
    outputs = sum(request.output_len for request in requests) / len(requests)
    config, step_times = spec.config, spec.times
    held = inputs + outputs / 2
    running = max(1, min(config.max_num_seqs, int(config.num_blocks * config.block_size / held)))
    from paceline.sim.latency import StepShape

    decode = step_times.seconds(StepShape(running, running, 0.0, running, running * held))
    budget = config.max_num_batched_tokens
    chunk = step_times.seconds(StepShape(budget, 1, budget * min(inputs, budget) / 2, 0, 0.0)) / budget
    return 1.0 / (outputs * decode / running + inputs * chunk)


def saturation(traffic: Traffic, spec: ReplicaSpec, guess: float, count: int) -> float:
    """Requests/s completed when far more arrive than can be served."""
    run = simulate(traffic.at(3 * guess, count), spec)
    ends = sorted(run.records.last[run.records.ok].tolist())
    if len(ends) < 10:
        return 0.0
    early, late = len(ends) // 5, 4 * len(ends) // 5
    return float((late - early) / max(ends[late] - ends[early], 1e-9))


def whole_window(run: Run) -> Window:
    """From the first arrival to the last end: over it Little's law is exact."""
    return Window(float(run.records.scheduled[0]), run.end)
