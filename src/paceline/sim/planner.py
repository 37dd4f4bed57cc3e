"""How many of which device for this traffic and these targets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core.disciplines import discipline as discipline_named
from paceline.errors import ConfigError, PacelineError
from paceline.sim.capacity import (
    Capacity,
    Target,
    Traffic,
    Trial,
    capacity,
    first_guess,
    saturation,
    trial,
    whole_window,
)
from paceline.sim.cluster import ReplicaSpec
from paceline.sim.engines import EngineProfile, engine
from paceline.sim.latency import Deployment
from paceline.workload.metrics import Little, little

Progress = Callable[[str], None]

PART = 12  # replicas that stand for a larger cluster
LASTS = 120.0  # seconds that a cluster is simulated for, if that is not too many requests


class PlanError(PacelineError):
    """There is no plan. The message says which target cannot be met, and what the best hardware reaches."""


@dataclass(frozen=True)
class Knobs:
    """How each replica schedules."""

    discipline: str = "paceline"
    order: str | None = None
    token_budget: int = 8192
    max_num_seqs: int = 256
    long_prefill_token_threshold: int = 0  # most tokens of one prompt in a step: chunks; 0: no limit
    host_gb: float = 0.0  # memory for swapped KV
    utilization: float = 0.9  # share of the device's memory that may be used
    prefix_caching: bool = True

    def describe(self) -> str:
        text = f"discipline {self.discipline}" + (f", order {self.order}" if self.order else "")
        text += f", {self.token_budget} tokens and {self.max_num_seqs} sequences a step"
        if self.long_prefill_token_threshold:
            text += f", prompts in chunks of {self.long_prefill_token_threshold}"
        return text + (f", {self.host_gb:g} GB of host memory" if self.host_gb else "")


@dataclass(frozen=True)
class Question:
    """What is asked."""

    traffic: Traffic
    deployments: tuple[Deployment, ...]  # candidates
    targets: tuple[Target, ...]
    rate: float  # requests/s of the whole cluster
    knobs: Knobs = Knobs()
    engine: str = "vllm"
    router: str = "least-load"
    step_error: float = 0.10  # step times may be this much longer or shorter
    availability: float = 0.0  # share of the time in which the targets must hold though replicas fail; 0: not asked
    replica_availability: float = 0.99
    kv_tokens: int | None = None  # read from a real engine, instead of reckoned
    trial_requests: int = 3000
    what_ifs: bool = True

    def __post_init__(self) -> None:
        if not self.targets:
            raise ConfigError("targets", "none", "given: --ttft-p99, --tpot-p99, --e2e-p99 or --target")
        if not 0 < self.rate < math.inf:
            raise ConfigError("--rate", self.rate, "a finite number of requests per second above 0")
        if not 0 <= self.step_error < 1:
            raise ConfigError("--step-error", self.step_error, "a share from 0 to below 1")
        if not 0 <= self.availability < 1:
            raise ConfigError("--availability", self.availability, "a share below 1, such as 0.999")
        if not 0 < self.replica_availability <= 1:
            raise ConfigError("--replica-availability", self.replica_availability, "a share above 0")
        if self.trial_requests < 100:
            raise ConfigError("--requests", self.trial_requests, "at least 100")


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


@dataclass(frozen=True)
class WhatIf:
    """One thing changed."""

    change: str
    rate: float  # capacity of a replica, requests/s; 0: cannot meet the targets
    replicas: int  # by dividing; 0: none would do
    price: float  # of those, for an hour


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


def name_of(deployment: Deployment) -> str:
    """Such as "llama-3.1-8b bf16 on 2 x h100"."""
    kind = {2.0: "bf16", 1.0: "fp8", 0.5: "4 bit"}.get(deployment.weight_bytes, f"{deployment.weight_bytes:g} bytes")
    devices = f"{deployment.tensor_parallel} x " if deployment.tensor_parallel > 1 else ""
    return f"{deployment.model.name} {kind} on {devices}{deployment.hardware.name}"


def replica_spec(
    deployment: Deployment, knobs: Knobs, longest: int, kv_tokens: int | None = None, scale: float = 1.0
) -> ReplicaSpec:
    """A replica's settings. PlanError when the model, or the longest request, does not fit into its memory."""
    tokens = kv_tokens if kv_tokens is not None else deployment.kv_tokens(knobs.utilization, knobs.token_budget)
    if tokens < longest:
        room = "the weights do not fit" if tokens <= 0 else f"there is room for {tokens:,} tokens of KV"
        raise PlanError(
            f"{name_of(deployment)}: {room}, and the longest request needs {longest:,}; "
            "use more devices for a replica (--tensor-parallel), smaller weights, or larger devices"
        )
    row = discipline_named(knobs.discipline, knobs.order)
    size = row.defaults.get("block_size", 16)
    settings = {
        "num_blocks": tokens // size,
        "max_num_seqs": knobs.max_num_seqs,
        "max_num_batched_tokens": max(knobs.token_budget, knobs.max_num_seqs),
        "max_model_len": longest + 1,
        "long_prefill_token_threshold": knobs.long_prefill_token_threshold,
        "num_host_blocks": int(knobs.host_gb * 1e9 / (deployment.kv_bytes_per_token * size)),
    }
    if not row.fixed.get("enable_chunked_prefill", (True, ""))[0] or not row.defaults.get(
        "enable_chunked_prefill", True
    ):
        settings["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], longest + 1)
    if not knobs.prefix_caching:
        settings["enable_prefix_caching"] = False
    settings = {name: value for name, value in settings.items() if name not in row.fixed}
    return ReplicaSpec(
        row.configure(**settings),
        row,
        deployment.step_times().scaled(scale),
        block_bytes=deployment.kv_bytes_per_token * size / deployment.tensor_parallel,
        pcie_bandwidth=deployment.hardware.pcie_gbs * 1e9,
    )


def plan(question: Question, progress: Progress = lambda text: None) -> Plan:
    """Find the cheapest candidate that meets the targets, and the smallest cluster of it that does.

    Raises PlanError when no candidate can.
    """
    begin = time.perf_counter()
    profile = engine(question.engine)
    candidates, refused = _candidates(question, profile, progress)
    best = min(candidates, key=lambda one: one.price_per_request)
    # The same with longer and shorter steps.
    slow, fast = (
        _rescaled(question, best, 1 + sign * question.step_error, progress) if question.step_error else best.capacity
        for sign in (1, -1)
    )
    search = _Search(question, best.spec, progress)
    replicas, one_less = search.smallest(max(1, math.ceil(question.rate / best.capacity.rate)))
    chosen = search.whole(replicas)
    found = best.capacity.rate
    high, low = replicas, replicas
    if question.step_error:
        more, fewer = (max(1, math.ceil(replicas * found / (one.rate or found))) for one in (slow, fast))
        high = search.enough(max(replicas, more), 1 + question.step_error) if slow.rate else 0
        low = min(replicas, search.enough(fewer, 1 - question.step_error))
    answer = Plan(
        question,
        best,
        profile,
        replicas,
        spares(replicas, question),
        chosen,
        one_less,
        low,
        high,
        slow.rate,
        fast.rate,
        binding_limit(best),
        _curve(question, best, progress),
        [one for one in candidates if one is not best],
        refused,
    )
    if question.what_ifs:
        answer.what_ifs = _what_ifs(question, best, replicas, progress)
    answer.seconds = time.perf_counter() - begin
    return answer


def longest_request(traffic: Traffic) -> int:
    """Tokens, prompt and answer."""
    return max(request.prompt_len + request.output_len for request in traffic.workload.requests)


def _candidates(question: Question, profile: EngineProfile, progress: Progress) -> tuple[list[Candidate], list[str]]:
    found: list[Candidate] = []
    refused: list[str] = []
    nearest: tuple[float, str] | None = None
    for bare in question.deployments:
        deployment = bare.with_coefficients(profile.coefficients)
        name = name_of(deployment)
        try:
            spec = replica_spec(deployment, question.knobs, longest_request(question.traffic), question.kv_tokens)
        except PlanError as error:
            refused.append(str(error))
            continue
        progress(f"{name}: capacity of a replica")
        guess = first_guess(question.traffic, spec)
        reached = capacity(question.traffic, spec, question.targets, question.trial_requests, guess)
        if not reached.rate:
            off = reached.at
            worst = max(off.missed, key=lambda target: target.value(off.stretch) / target.seconds)
            got = worst.value(off.stretch)
            text = f"{name}: {worst} is not met even at {off.rate:.3g} requests/s a replica, "
            text += f"where it is {got * 1e3:.4g} ms"
            refused.append(text)
            if nearest is None or got / worst.seconds < nearest[0]:
                nearest = (got / worst.seconds, text)
            continue
        top = saturation(question.traffic, spec, guess, question.trial_requests)
        found.append(Candidate(deployment, spec, reached, top))
    if not found:
        raise PlanError("no candidate can do it; nearest: " + (nearest[1] if nearest else "; ".join(refused)))
    return found, refused


def _rescaled(question: Question, best: Candidate, factor: float, progress: Progress) -> Capacity:
    progress(f"{best.name}: with steps {factor - 1:+.0%}")
    spec = replace(best.spec, times=best.spec.times.scaled(factor))
    count = max(1000, 2 * question.trial_requests // 3)
    return capacity(question.traffic, spec, question.targets, count, best.capacity.rate / factor**1.2, 0.03)


def judged_by(question: Question, replicas: int) -> tuple[int, float, int]:
    """(replicas, requests/s, requests) of the run that says whether so many replicas are enough.

    A run has to last much longer than a request, so a large cluster is judged by a part of it with its share of the
    traffic: beyond a dozen replicas a router gains little from more of them.
    """
    part = min(replicas, PART)
    rate = question.rate * part / replicas
    return part, rate, int(max(question.trial_requests, min(LASTS * rate, 20_000)))


class _Search:
    """Clusters of one kind of replica, simulated with their router, each size once."""

    def __init__(self, question: Question, spec: ReplicaSpec, progress: Progress) -> None:
        self.question, self.spec, self.progress = question, spec, progress
        self._tried: dict[int, Trial] = {}

    def meets(self, replicas: int) -> bool:
        """With every seed. What is kept is the first trial that misses, or the first."""
        if replicas not in self._tried:
            trials = []
            # A long run is sure enough by itself; short ones have to agree.
            for more in range(1 if judged_by(self.question, replicas)[2] > 12_000 else 3):
                trials.append(self._trial(replicas, more))
                if not trials[-1].meets:
                    break
            self._tried[replicas] = trials[0] if trials[-1].meets else trials[-1]
            self.progress(f"{replicas} replicas behind {self.question.router}: {_met(self._tried[replicas])}")
        return self._tried[replicas].meets

    def _trial(self, replicas: int, more: int = 0, factor: float = 1.0) -> Trial:
        question = self.question
        traffic = replace(question.traffic, seed=question.traffic.seed + more)
        spec = self.spec if factor == 1 else replace(self.spec, times=self.spec.times.scaled(factor))
        part, rate, count = judged_by(question, replicas)
        return trial(traffic, spec, question.targets, rate, count, part, question.router)

    def whole(self, replicas: int) -> Trial:
        """All of the cluster, for the time that a plan may take."""
        if replicas <= PART:
            return self._tried[replicas]
        question = self.question
        self.progress(f"{replicas} replicas, all of them")
        count = int(min(30 * question.rate, 30_000))
        return trial(question.traffic, self.spec, question.targets, question.rate, count, replicas, question.router)

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
        return high, self._tried.get(high - 1)

    def enough(self, guess: int, factor: float) -> int:
        """Replicas that meet the targets when steps take `factor` times as long, from a guess upwards."""
        for replicas in range(guess, guess + 8 + guess // 4):
            one = self._trial(replicas, factor=factor)
            self.progress(f"{replicas} replicas with steps {factor - 1:+.0%}: {_met(one)}")
            if one.meets:
                return replicas
        return replicas


def _met(one: Trial) -> str:
    return "meets" if one.meets else "misses " + (", ".join(map(str, one.missed)) or why_not(one))


def why_not(one: Trial) -> str:
    """Of a trial that misses no target and is not good enough all the same."""
    return f"{one.lost} requests are lost" if one.lost else "more arrive than are finished"


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


def _curve(question: Question, best: Candidate, progress: Progress) -> list[Trial]:
    progress("latency against rate")
    top = best.capacity.rate
    shares = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25)
    trials = []
    count = max(800, 2 * question.trial_requests // 3)
    for share in shares:
        if share == 1.0:
            trials.append(best.capacity.at)
        else:
            trials.append(trial(question.traffic, best.spec, question.targets, top * share, count))
    return trials


def _what_ifs(question: Question, best: Candidate, replicas: int, progress: Progress) -> list[WhatIf]:
    deployment, knobs = best.deployment, question.knobs
    count = max(400, question.trial_requests // 4)
    cases: list[tuple[str, Deployment, Knobs, tuple[Target, ...]]] = []
    degree = deployment.tensor_parallel
    if deployment.hardware.link_gbs and deployment.model.heads % (2 * degree) == 0:
        cases.append(
            (
                f"{2 * degree} devices a replica",
                replace(deployment, tensor_parallel=2 * degree),
                knobs,
                question.targets,
            )
        )
    if deployment.weight_bytes > 1 and deployment.hardware.fp8_tflops:
        cases.append(
            ("fp8 weights and KV", replace(deployment, weight_bytes=1.0, kv_bytes=1.0), knobs, question.targets)
        )
    for budget in (knobs.token_budget // 4, knobs.token_budget * 2):
        cases.append((f"token budget {budget}", deployment, replace(knobs, token_budget=budget), question.targets))
    eased = tuple(replace(target, seconds=target.seconds * 1.5) for target in question.targets)
    cases.append(("all targets half as long again", deployment, knobs, eased))
    found = []
    for change, other, own, targets in cases:
        progress(f"what if: {change}")
        try:
            spec = replica_spec(other, own, longest_request(question.traffic), question.kv_tokens)
        except PacelineError:
            found.append(WhatIf(change, 0.0, 0, 0.0))
            continue
        guess = best.capacity.rate * other.tensor_parallel / degree
        rate = capacity(question.traffic, spec, targets, count, guess, 0.06).rate
        # The pooling that the recommended cluster was seen to have is granted to the others too.
        needed = max(1, math.ceil(replicas * best.capacity.rate / rate)) if rate else 0
        price = other.hardware.price_per_hour * other.tensor_parallel * needed
        found.append(WhatIf(change, rate, needed, price))
    return found


def tune(
    question: Question, devices: int, progress: Progress = lambda text: None, disciplines: Sequence[str] = ()
) -> list[tuple[Knobs, Deployment, float]]:
    """Knobs for a given number of devices, best first: (knobs, deployment, requests/s of all devices together).

    One knob at a time, twice round, keeping what carries more; the traffic is shared out evenly.
    """
    profile = engine(question.engine)
    longest = longest_request(question.traffic)
    seen: dict[tuple[Knobs, int], float] = {}
    bases = [one.with_coefficients(profile.coefficients) for one in question.deployments]

    def rated(knobs: Knobs, deployment: Deployment) -> float:
        key = (knobs, bases.index(deployment))
        if key not in seen:
            seen[key] = 0.0
            groups = devices // deployment.tensor_parallel
            try:
                spec = replica_spec(deployment, knobs, longest, question.kv_tokens)
                if groups:
                    guess = first_guess(question.traffic, spec)
                    reached = capacity(question.traffic, spec, question.targets, question.trial_requests, guess, 0.04)
                    seen[key] = reached.rate * groups
            except PacelineError as error:
                progress(f"{knobs.describe()}: {error}")
            progress(f"{name_of(deployment)}, {knobs.describe()}: {seen[key]:.4g} requests/s")
        return seen[key]

    best, where = question.knobs, max(bases, key=lambda one: rated(question.knobs, one))
    for _ in range(2):
        before = best
        for name, values in _knob_values(disciplines).items():
            choices = [replace(best, **{name: value}) for value in values] + [best]
            best = max(choices, key=lambda knobs: rated(knobs, where))
        if best == before:
            break
    ranked = sorted(seen.items(), key=lambda item: -item[1])
    return [(knobs, bases[index], rate) for (knobs, index), rate in ranked]


def _knob_values(disciplines: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    return {
        "discipline": tuple(disciplines) or ("paceline", "vllm", "sglang", "sarathi"),
        "token_budget": (1024, 2048, 4096, 8192, 16384),
        "max_num_seqs": (64, 128, 256, 512),
        "long_prefill_token_threshold": (0, 512, 2048),
        "order": (None, "priority"),
        "host_gb": (0.0, 64.0),
    }
