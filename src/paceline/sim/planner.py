"""How many of which device for this traffic and these targets."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from paceline.sim import candidates, what_if
from paceline.sim.candidates import Candidate, binding_limit
from paceline.sim.capacity import Trial, whole_window
from paceline.sim.cluster_size import PART, SizeSearch, enough, spares, whole
from paceline.sim.engines import EngineProfile, engine
from paceline.sim.question import Progress, Question
from paceline.sim.what_if import WhatIf
from paceline.sim.workers import Workers
from paceline.workload.metrics import Little, little


@dataclass
class Plan:
    """The answer."""

    question: Question
    best: Candidate
    profile: EngineProfile
    replicas: int
    spares: int
    chosen: Trial  # the cluster, simulated with its router
    one_less: Trial | None  # the same with one replica fewer: misses the targets
    low: int  # replicas if steps are `step_error` shorter
    high: int  # ... longer
    capacity_low: float  # requests/s of a replica if steps are `step_error` longer
    capacity_high: float
    binding: str
    curve: list[Trial]
    others: list[Candidate]
    refused: list[str]  # candidates that cannot do it, and why
    what_ifs: list[WhatIf] = field(default_factory=list)
    seconds: float = 0.0  # that the plan took

    @property
    def devices(self) -> int:
        return (self.replicas + self.spares) * self.best.deployment.tensor_parallel

    @property
    def price(self) -> float:
        """For an hour."""
        return self.devices * self.best.deployment.hardware.price_per_hour

    @property
    def cost_per_million_output(self) -> float:
        """At the planned rate, for tokens of requests that met all targets."""
        good = self.chosen.stretch.goodput
        return self.price / 3600 / good.tokens_per_second * 1e6 if good and good.tokens_per_second else math.inf

    @property
    def cost_per_million_total(self) -> float:
        stretch = self.chosen.stretch
        share = stretch.goodput.share if stretch.goodput else 1.0
        return self.price / 3600 / max(stretch.total_rate * share, 1e-9) * 1e6

    @property
    def little(self) -> Little:
        """Over the whole simulated run, start-up and drain included."""
        return little(self.chosen.run.records, whole_window(self.chosen.run))


def plan(question: Question, progress: Progress = lambda text: None, processes: int = 1) -> Plan:
    """Find the cheapest candidate that meets the targets, and the smallest cluster of it that does.

    The same plan with any number of `processes`. Raises PlanError when no candidate can.
    """
    begin = time.perf_counter()
    with Workers(processes) as workers:
        answer = _plan(question, workers, progress)
    answer.seconds = time.perf_counter() - begin
    return answer


def _plan(question: Question, workers: Workers, progress: Progress) -> Plan:
    profile = engine(question.engine)
    found, refused = candidates.find(question, profile, workers, progress)
    best = min(found, key=lambda one: one.price_per_request)
    error, spec = question.step_error, best.spec
    progress(f"{best.name}: with steps +-{error:.0%}, latency against rate" + ", what if" * question.what_ifs)
    others = [workers.submit(candidates.rescaled, question, best, 1 + sign * error) for sign in (1, -1) if error]
    curve = candidates.curve(question, best, workers)
    changes = what_if.start(question, best, workers) if question.what_ifs else []
    search = SizeSearch(question, spec, progress)
    replicas, one_less = search.smallest(max(1, math.ceil(question.rate / best.capacity.rate)))
    progress(f"{replicas} replicas, with steps +-{error:.0%}")
    all_of_it = workers.submit(whole, question, spec, replicas) if replicas > PART else None
    at = best.capacity.rate
    more, fewer = (future.result().rate for future in others) if others else (at, at)
    guesses = [max(1, math.ceil(replicas * at / (rate or at))) for rate in (more, fewer)]
    high = workers.submit(enough, question, spec, max(replicas, guesses[0]), 1 + error) if error and more else None
    low = workers.submit(enough, question, spec, guesses[1], 1 - error) if error else None
    trials = [future.result() for future in curve]
    return Plan(
        question,
        best,
        profile,
        replicas,
        spares(replicas, question),
        search.tried[replicas] if all_of_it is None else all_of_it.result(),
        one_less,
        min(replicas, low.result()) if low else replicas,
        high.result() if high else 0 if error else replicas,
        min(more, at),
        max(fewer, at),
        binding_limit(best),
        sorted([*trials, best.capacity.at], key=lambda one: one.rate),
        [one for one in found if one is not best],
        refused,
        what_if.read(changes, best, replicas),
    )
