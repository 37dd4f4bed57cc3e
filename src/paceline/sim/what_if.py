"""One thing changed: what a replica would carry then."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass, replace

from paceline.errors import PacelineError
from paceline.sim.candidates import Candidate
from paceline.sim.capacity import Target, capacity
from paceline.sim.hardware import HARDWARE, Hardware
from paceline.sim.latency import Deployment
from paceline.sim.question import Knobs, Question, longest_request, replica_spec
from paceline.sim.workers import Workers


@dataclass(frozen=True)
class WhatIf:
    """One thing changed."""

    change: str
    rate: float  # capacity of a replica, requests/s; 0: cannot meet the targets
    replicas: int  # by dividing; 0: none would do
    price: float  # of those, for an hour


@dataclass(frozen=True)
class Case:
    """A change to be tried."""

    change: str
    deployment: Deployment
    knobs: Knobs
    targets: tuple[Target, ...]


def cases(question: Question, best: Candidate) -> list[Case]:
    """The next device, more devices a replica, smaller numbers, other budgets, easier targets."""
    deployment, knobs, targets = best.deployment, question.knobs, question.targets
    found = []
    if (other := next_device(deployment.hardware)) is not None:
        found.append(Case(f"on {other.name}", replace(deployment, hardware=other), knobs, targets))
    degree = 2 * deployment.tensor_parallel
    if deployment.hardware.link_gbs and deployment.model.heads % degree == 0:
        found.append(Case(f"{degree} devices a replica", replace(deployment, tensor_parallel=degree), knobs, targets))
    if deployment.weight_bytes > 1 and deployment.hardware.fp8_tflops:
        smaller = replace(deployment, weight_bytes=1.0, kv_bytes=1.0)
        found.append(Case("fp8 weights and KV", smaller, knobs, targets))
    for budget in (knobs.token_budget // 4, knobs.token_budget * 2):
        found.append(Case(f"token budget {budget}", deployment, replace(knobs, token_budget=budget), targets))
    eased = tuple(replace(target, seconds=target.seconds * 1.5) for target in targets)
    return [*found, Case("all targets half as long again", deployment, knobs, eased)]


def next_device(one: Hardware) -> Hardware | None:
    """The next in the table with more bandwidth; None: there is none."""
    faster = [other for other in HARDWARE.values() if other.bandwidth_gbs > one.bandwidth_gbs]
    return min(faster, key=lambda other: other.bandwidth_gbs, default=None)


def rate_of(question: Question, case: Case, guess: float) -> float:
    """Requests/s of a replica; 0: it cannot meet the targets, or the model does not fit."""
    try:
        spec = replica_spec(case.deployment, case.knobs, longest_request(question.traffic), question.kv_tokens)
    except PacelineError:
        return 0.0
    count = max(400, question.trial_requests // 4)
    return capacity(question.traffic, spec, case.targets, count, guess, 0.06).rate


def start(question: Question, best: Candidate, workers: Workers) -> list[tuple[Case, Future[float]]]:
    """Have every case tried."""
    degree = best.deployment.tensor_parallel
    return [
        (
            case,
            workers.submit(rate_of, question, case, best.capacity.rate * case.deployment.tensor_parallel / degree),
        )
        for case in cases(question, best)
    ]


def read(asked: list[tuple[Case, Future[float]]], best: Candidate, replicas: int) -> list[WhatIf]:
    """What came of them. The pooling that the recommended cluster was seen to have is granted to the others too."""
    found = []
    for case, future in asked:
        rate = future.result()
        needed = max(1, math.ceil(replicas * best.capacity.rate / rate)) if rate else 0
        price = case.deployment.hardware.price_per_hour * case.deployment.tensor_parallel * needed
        found.append(WhatIf(case.change, rate, needed, price))
    return found
