"""The smallest cluster that meets the targets, simulated with its router."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.sim.candidates import why_not
from paceline.sim.capacity import Trial, trial
from paceline.sim.cluster import ReplicaSpec
from paceline.sim.question import PlanError, Progress, Question

PART = 12  # replicas that stand for a larger cluster
LASTS = 120.0  # seconds that a cluster is simulated for, if that is not too many requests
SURE = 12_000  # requests of a run that is sure enough by itself; shorter ones have to agree with two more


def judged_by(question: Question, replicas: int) -> tuple[int, float, int]:
    """(replicas, requests/s, requests) of the run that says whether so many replicas are enough.

    A run has to last much longer than a request, so a large cluster is judged by a part of it with its share of the
    traffic: beyond a dozen replicas a router gains little from more of them.
    """
    part = min(replicas, PART)
    rate = question.rate * part / replicas
    return part, rate, int(max(question.trial_requests, min(LASTS * rate, 20_000)))


def judge(question: Question, spec: ReplicaSpec, replicas: int, more: int = 0, factor: float = 1.0) -> Trial:
    """The run by which so many replicas are judged: with the seed's `more`-th successor, and steps `factor` times as
    long."""
    traffic = replace(question.traffic, seed=question.traffic.seed + more)
    spec = spec if factor == 1 else replace(spec, times=spec.times.scaled(factor))
    part, rate, count = judged_by(question, replicas)
    return trial(traffic, spec, question.targets, rate, count, part, question.router)


def whole(question: Question, spec: ReplicaSpec, replicas: int) -> Trial:
    """All of a large cluster, for the time that a plan may take."""
    count = int(min(30 * question.rate, 30_000))
    return trial(question.traffic, spec, question.targets, question.rate, count, replicas, question.router)


def enough(question: Question, spec: ReplicaSpec, guess: int, factor: float) -> int:
    """Replicas that meet the targets when steps take `factor` times as long, from a guess upwards."""
    replicas = guess
    for replicas in range(guess, guess + 8 + guess // 4):
        if judge(question, spec, replicas, factor=factor).meets:
            break
    return replicas


class SizeSearch:
    """Clusters of one kind of replica, each size simulated once."""

    def __init__(self, question: Question, spec: ReplicaSpec, progress: Progress) -> None:
        self.question, self.spec, self.progress = question, spec, progress
        self.tried: dict[int, Trial] = {}

    def meets(self, replicas: int) -> bool:
        """With every seed. What is kept is the first trial that misses, or the first."""
        if replicas not in self.tried:
            trials = []
            for more in range(1 if judged_by(self.question, replicas)[2] > SURE else 3):
                trials.append(judge(self.question, self.spec, replicas, more))
                if not trials[-1].meets:
                    break
            self.tried[replicas] = trials[0] if trials[-1].meets else trials[-1]
            self.progress(f"{replicas} replicas behind {self.question.router}: {in_words(self.tried[replicas])}")
        return self.tried[replicas].meets

    def smallest(self, guess: int) -> tuple[int, Trial | None]:
        """The smallest cluster that meets the targets, and the trial of one replica fewer."""
        low, high, step = 0, guess, max(1, guess // 12)
        while not self.meets(high):
            low, high, step = high, high + step, 2 * step
            if high > 16 * guess + 64:
                raise PlanError(
                    f"even {low} replicas of this kind miss the targets at {self.question.rate:g} requests/s behind "
                    f"{self.question.router}; try another --router or looser targets"
                )
        while not low and high > 1:
            lower = max(high - step, 1)
            if not self.meets(lower):
                low = lower
            else:
                high, step = lower, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.meets(middle) else (middle, high)
        return high, self.tried.get(high - 1)


def in_words(one: Trial) -> str:
    """Whether a trial meets the targets, and what it misses."""
    return "meets" if one.meets else "misses " + (", ".join(map(str, one.missed)) or why_not(one))


def spares(replicas: int, question: Question) -> int:
    """Replicas more, so that enough are up often enough; each is up independently of the others."""
    if not question.availability:
        return 0
    up = question.replica_availability
    for more in range(10 * replicas + 10):
        total = replicas + more
        enough = sum(
            math.comb(total, alive) * up**alive * (1 - up) ** (total - alive) for alive in range(replicas, total + 1)
        )
        if enough >= question.availability:
            return more
    raise PlanError(f"availability {question.availability:g} is out of reach with replicas that are up {up:.1%}")
