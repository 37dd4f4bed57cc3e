"""What one kind of replica carries, and what stops it from carrying more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from paceline.sim.capacity import Capacity, Trial, capacity, first_guess, saturation, trial
from paceline.sim.cluster import ReplicaSpec
from paceline.sim.engines import EngineProfile
from paceline.sim.latency import Deployment
from paceline.sim.question import PlanError, Progress, Question, longest_request, name_of, replica_spec
from paceline.sim.workers import Workers

SHARES = (0.25, 0.5, 0.75, 0.9, 1.1, 1.25)  # of the capacity, at which latency is shown beside it


@dataclass(frozen=True)
class Candidate:
    """What one kind of replica carries."""

    deployment: Deployment
    spec: ReplicaSpec
    capacity: Capacity
    saturation: float  # requests/s

    @property
    def price(self) -> float:
        """Of a replica, for an hour."""
        return self.deployment.hardware.price_per_hour * self.deployment.tensor_parallel

    @property
    def price_per_request(self) -> float:
        return self.price / 3600 / self.capacity.rate if self.capacity.rate else math.inf

    @property
    def name(self) -> str:
        return name_of(self.deployment)


def find(
    question: Question, profile: EngineProfile, workers: Workers, progress: Progress
) -> tuple[list[Candidate], list[str]]:
    """Those that can meet the targets, and why the others cannot. PlanError when none can."""
    refused: list[str] = []
    asked: list[tuple[Deployment, ReplicaSpec, Future[Capacity], Future[float]]] = []
    for bare in question.deployments:
        deployment = bare.with_coefficients(profile.coefficients)
        try:
            spec = replica_spec(deployment, question.knobs, longest_request(question.traffic), question.kv_tokens)
        except PlanError as error:
            refused.append(str(error))
            continue
        progress(f"{name_of(deployment)}: capacity of a replica")
        guess = first_guess(question.traffic, spec)
        count = question.trial_requests
        asked.append(
            (
                deployment,
                spec,
                workers.submit(capacity, question.traffic, spec, question.targets, count, guess),
                workers.submit(saturation, question.traffic, spec, guess, count),
            )
        )
    found: list[Candidate] = []
    nearest: tuple[float, str] | None = None
    for deployment, spec, reached, top in asked:
        if reached.result().rate:
            found.append(Candidate(deployment, spec, reached.result(), top.result()))
            continue
        ratio, text = _too_slow(deployment, reached.result().at)
        refused.append(text)
        if nearest is None or ratio < nearest[0]:
            nearest = (ratio, text)
    if not found:
        raise PlanError("no candidate can do it; nearest: " + (nearest[1] if nearest else "; ".join(refused)))
    return found, refused


def _too_slow(deployment: Deployment, lowest: Trial) -> tuple[float, str]:
    """How far off the worst target is at the lowest rate tried, as a ratio and in words."""
    name = f"{name_of(deployment)}: "
    if not lowest.missed:
        return math.inf, f"{name}{why_not(lowest)} even at {lowest.rate:.3g} requests/s a replica"
    worst = max(lowest.missed, key=lambda target: target.value(lowest.stretch) / target.seconds)
    got = worst.value(lowest.stretch)
    text = f"{name}{worst} is not met even at {lowest.rate:.3g} requests/s a replica, where it is {got * 1e3:.4g} ms"
    return got / worst.seconds, text


def rescaled(question: Question, best: Candidate, factor: float) -> Capacity:
    """Its capacity when steps take `factor` times as long."""
    spec = replace(best.spec, times=best.spec.times.scaled(factor))
    count = _fewer(question, 1000)
    return capacity(question.traffic, spec, question.targets, count, best.capacity.rate / factor**1.2, 0.03)


def curve(question: Question, best: Candidate, workers: Workers) -> Sequence[Future[Trial]]:
    """Latency at a few rates below and above the capacity."""
    count = _fewer(question, 800)
    return [
        workers.submit(trial, question.traffic, best.spec, question.targets, best.capacity.rate * share, count)
        for share in SHARES
    ]


def _fewer(question: Question, least: int) -> int:
    """Requests of trials that need not be as sure as others."""
    asked = question.trial_requests
    return max(min(least, asked), 2 * asked // 3)


def why_not(one: Trial) -> str:
    """Of a trial that misses no target and is not good enough all the same."""
    return f"{one.lost} requests are lost" if one.lost else "more arrive than are finished"


def binding_limit(one: Candidate) -> str:
    """What stops a replica from carrying more."""
    beyond = one.capacity.beyond
    if beyond is None:
        return "nothing that was tried"
    usage, config = beyond.run.usage, one.spec.config
    missed = ", ".join(f"{target.metric.upper()} p{target.percent:g}" for target in beyond.missed)
    missed = missed or why_not(beyond)
    running = usage.running / max(usage.seconds, 1e-9)
    if usage.kv_percentile(99) >= 0.97:
        cause = "KV memory is full"
    elif running >= 0.95 * config.max_num_seqs:
        cause = f"all {config.max_num_seqs} sequences of the batch are taken"
    elif one.saturation and beyond.rate > 0.97 * one.saturation:
        cause = "the device computes all the time"
    elif any(target.metric == "tpot" for target in beyond.missed):
        cause = "decode steps, lengthened by others' prompts"
    else:
        cause = "bursts queue for prefill"
    return f"{missed} ({cause})"
