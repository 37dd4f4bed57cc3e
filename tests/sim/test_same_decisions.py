"""The simulator decides as the engine does: the same scheduler, step by step, under every discipline."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from paceline.core.disciplines import DISCIPLINES
from paceline.core.plan import StepPlan, StepResult
from paceline.core.scheduler import Scheduler
from paceline.engine import core_loop, messages
from paceline.sim import replica as replica_module
from paceline.sim.cluster import RETURNS, SLOWS, Fault, ReplicaSpec, simulate
from paceline.sim.latency import StepTimes, shape_of
from paceline.sim.prompts import Prompts
from paceline.sim.replica import Replica
from paceline.sim.router import router
from paceline.workload.requests import Workload
from tests.sim.samples import azure, shared_prefixes, short, spec, trace

Decision = tuple[float, tuple[tuple[str, int, int], ...]]

LOADS: dict[str, Callable[[], Workload]] = {
    "azure conversation": lambda: short(azure(50, rate=30.0), 1500, 120),
    "azure code": lambda: short(trace("azure2023_code", 50, rate=30.0), 1500, 120),
    "mooncake conversation": lambda: short(trace("mooncake_conversation", 30, rate=20.0), 1500, 100),
    "mooncake tool and agent mix": lambda: short(trace("mooncake_arxiv_mixed_93", 40), 1500, 100),
    "burstgpt": lambda: short(trace("burstgpt1_head400", 50, rate=40.0), 1500, 120),
    "shared prefixes": lambda: shared_prefixes(60),
}


class Clock:
    """A virtual one."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class MockForward:
    """An executor whose steps take fixed times; it notes what it was asked to run."""

    def __init__(self, times: StepTimes, clock: Clock, rows: int) -> None:
        self.times, self.clock = times, clock
        self.decisions: list[Decision] = []
        self.scheduler: Scheduler | None = None
        self._tokens = np.zeros(rows, np.int32)

    def execute(self, plan: StepPlan) -> StepResult:
        assert self.scheduler is not None
        self.decisions.append(decided(self.scheduler, plan, self.clock.now))
        for entered in plan.entered:
            self._tokens[entered.row] = (entered.seed * 0x9E3779B1 + 12345) & 0x3FFFFFFF
        seconds = self.times.seconds(shape_of(plan)) if plan.rows.size else 0.0
        self.clock.now += seconds
        return StepResult(self._tokens[plan.rows[plan.samples]], seconds)


def decided(scheduler: Scheduler, plan: StepPlan, now: float) -> Decision:
    names = [scheduler.batch.occupant[row].id for row in plan.rows.tolist()]
    return now, tuple(zip(names, plan.starts.tolist(), plan.counts.tolist(), strict=True))


def by_the_engine(workload: Workload, kind: ReplicaSpec) -> list[Decision]:
    """The engine's own loop, fed at the workload's times on a virtual clock."""
    clock = Clock()
    forward = MockForward(kind.times, clock, kind.config.max_num_seqs)
    loop = core_loop.EngineLoop(Scheduler(kind.config, kind.discipline), forward, clock)
    forward.scheduler = loop.scheduler
    prompts, arrivals = Prompts(), list(enumerate(workload.requests))
    while arrivals or loop.scheduler.has_work():
        while arrivals and arrivals[0][1].arrival <= clock.now:
            index, timed = arrivals.pop(0)
            request = prompts.request(timed, index)
            loop.handle(
                messages.Add(
                    number=index,
                    request_id=request.id,
                    prompt=messages.as_bytes(request.prompt),
                    params=request.params,
                    seed=request.seed,
                    priority=request.priority,
                    tenant=request.tenant,
                )
            )
        if not loop.scheduler.has_work():
            clock.now = arrivals[0][1].arrival if arrivals else clock.now
        elif loop.step() is None:
            wait = clock.now + loop.idle_wait()
            clock.now = min(wait, arrivals[0][1].arrival) if arrivals else wait
    return forward.decisions


def by_the_simulator(workload: Workload, kind: ReplicaSpec) -> list[Decision]:
    decisions: list[Decision] = []

    def watch(replica: Replica, plan: StepPlan, now: float) -> None:
        decisions.append(decided(replica.scheduler, plan, now))

    simulate(workload, kind, watch=watch)
    return decisions


def small(name: str) -> ReplicaSpec:
    """So small that rows and blocks run short."""
    settings: dict[str, int] = {"max_num_seqs": 12, "max_model_len": 4096}
    size = DISCIPLINES[name].defaults.get("block_size", 16)
    settings["num_blocks"] = 16000 // size
    settings["max_num_batched_tokens"] = 4096
    return spec(name, **settings)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", DISCIPLINES)
def test_engine_and_simulator_schedule_the_same_steps_at_the_same_times(name: str, load: str) -> None:
    workload, kind = LOADS[load](), small(name)
    engine = by_the_engine(workload, kind)
    simulator = by_the_simulator(workload, kind)
    assert len(engine) > 20
    for step, (theirs, ours) in enumerate(zip(engine, simulator, strict=False)):
        assert theirs == ours, f"step {step} differs"
    assert len(engine) == len(simulator)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", DISCIPLINES)
def test_steps_taken_together_are_the_steps_taken_one_by_one(name: str, load: str) -> None:
    workload, kind = LOADS[load](), small(name)
    slow, fast = simulate(workload, kind, fast=False), simulate(workload, kind)
    for column in ("scheduled", "started", "first", "last", "outcome", "tokens", "cached", "preemptions"):
        np.testing.assert_array_equal(getattr(slow.log, column), getattr(fast.log, column), err_msg=column)
    assert slow.counters == fast.counters
    assert slow.usage.steps == fast.usage.steps
    if name in ("paceline", "vllm", "orca"):
        assert fast.usage.fast_steps > 0


@pytest.mark.parametrize("load", ["azure conversation", "shared prefixes"])
def test_faults_find_steps_taken_together_as_they_find_steps_taken_one_by_one(load: str) -> None:
    workload, kind = LOADS[load](), small("paceline")
    times = np.quantile(workload.times(), [0.2, 0.35, 0.5, 0.7, 0.8]).tolist()
    faults = [
        Fault(times[0], 0, SLOWS, 1.7),
        Fault(times[1], 1),
        Fault(times[2], 1, RETURNS),
        Fault(times[3], 0),
        Fault(times[4], 0, RETURNS),
    ]
    slow, fast = (simulate(workload, kind, 3, router("least-load"), faults, fast=way) for way in (False, True))
    for column in ("scheduled", "started", "first", "last", "outcome", "tokens", "cached", "preemptions", "replica"):
        np.testing.assert_array_equal(getattr(slow.log, column), getattr(fast.log, column), err_msg=column)
    for name in slow.counters.keys() - {"steps", "scheduled_tokens"}:  # but for the steps that a death cuts off
        assert slow.counters[name] == fast.counters[name], name
    assert slow.log.gaps.total == pytest.approx(fast.log.gaps.total)
    assert slow.log.gaps.counts.sum() == fast.log.gaps.counts.sum()


def test_the_simulator_waits_as_long_as_the_engine_before_it_asks_again() -> None:
    assert replica_module.IDLE_WAIT == core_loop.IDLE_WAIT
