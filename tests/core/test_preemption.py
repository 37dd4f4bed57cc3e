"""Who yields, what becomes of their K/V, and how often: by name, for any row that preempts."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.costs import Costs
from paceline.core.disciplines import DISCIPLINES, discipline
from paceline.core.evictions import VICTIMS
from paceline.core.plan import Moved, StepPlan, StepResult
from paceline.core.preemption import Auto, Hold, Recompute, Swap, Threshold, preemption
from paceline.core.request import SequenceState
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError
from tests.core.asks import Ask
from tests.core.world import World

PREEMPTING = [name for name, row in DISCIPLINES.items() if "how" in row.knobs()]


def crowd(victim: str | None = None, **settings: object) -> World:
    """Three sequences in 12 blocks of 4, then a fourth: soon one of them has to go."""
    config = SchedulerConfig(
        num_blocks=12,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        num_host_blocks=32,
        **{"enable_prefix_caching": False, **settings},  # type: ignore[arg-type]
    )
    world = World(config, "vllm", victim=victim)
    world.add(Ask("old", tuple(range(100, 109)), max_tokens=30, priority=1))
    world.add(Ask("long", tuple(range(200, 217)), max_tokens=30))
    world.add(Ask("short", tuple(range(300, 305)), max_tokens=30, priority=2))
    world.turn()
    world.turn()
    world.add(Ask("new", tuple(range(400, 405)), max_tokens=30))
    return world


def first_victim(world: World) -> str:
    for _ in range(12):
        world.turn()
        step = world.scheduler.step
        assert step is not None
        if step.preempted:
            return str(step.preempted[0][0].id)
    raise AssertionError("nobody was preempted")


@pytest.mark.parametrize(
    ("victim", "expected"),
    [
        ("newest", "new"),
        ("latest-arrival", "new"),
        ("lowest-priority", "short"),
        ("shortest-output", "new"),
        ("most-kv", "long"),
        ("least-lost", "short"),  # of the worst priority; with equal ones it would be the shortest
    ],
)
def test_the_victim_named_yields(victim: str, expected: str) -> None:
    assert first_victim(crowd(victim)) == expected


@pytest.mark.parametrize("row", PREEMPTING)
def test_every_preempting_row_takes_every_way(row: str) -> None:
    for name in ("recompute", "swap", "hold", "auto", "threshold:64"):
        changed = discipline(row).with_eviction(how=name)
        assert changed.eviction.how == name and changed.eviction.front == discipline(row).eviction.front
        Scheduler(changed.configure(num_blocks=4096, max_model_len=64), changed)


@pytest.mark.parametrize("row", ["paceline", "vllm", "vllm-v0", "sarathi", "sglang", "lightllm"])
def test_these_rows_take_every_victim(row: str) -> None:
    for name in VICTIMS:
        assert type(discipline(row).with_eviction(name).eviction) is type(VICTIMS[name])


def test_rows_that_never_preempt_refuse_both() -> None:
    with pytest.raises(ConfigError, match=r"--victim: 'newest' .* tgi preempts nobody"):
        discipline("tgi").with_eviction("newest")
    with pytest.raises(ConfigError, match=r"--preemption: 'swap' .* orca preempts nobody"):
        discipline("orca").with_eviction(how="swap")


def test_rows_made_for_one_kind_of_victim_refuse_others() -> None:
    with pytest.raises(ConfigError, match=r"--victim: 'newest' .* part of how it works"):
        discipline("hf-fifo").with_eviction("newest")


def test_names_of_ways() -> None:
    assert [preemption(name) for name in ("recompute", "swap", "hold", "auto", "threshold:7", "threshold")] == [
        Recompute(),
        Swap(),
        Hold(),
        Auto(),
        Threshold(7),
        Threshold(128),
    ]
    for wrong in ("burn", "swap:3", "threshold:", "threshold:-1", "threshold:x"):
        with pytest.raises(ConfigError, match="--preemption"):
            preemption(wrong)


@pytest.mark.parametrize(("tokens", "expected"), [(6, "swap"), (64, "recompute")])
def test_a_threshold_swaps_who_has_as_many_tokens(tokens: int, expected: str) -> None:
    world = crowd()
    world.scheduler.builder.how = Threshold(tokens)
    first_victim(world)
    step = world.scheduler.step
    assert step is not None and {how for _, how in step.preempted} == {expected}


@pytest.mark.parametrize(("block_seconds", "expected"), [(0.001, "swap"), (100.0, "recompute")])
def test_auto_takes_the_cheaper_way_by_what_was_measured(block_seconds: float, expected: str) -> None:
    world = crowd()
    builder = world.scheduler.builder
    builder.how = Auto()
    plan = StepPlan(0, *(np.array([value], np.int32) for value in (0, 0, 32)), *([np.zeros(1)] * 4))  # type: ignore[arg-type]
    builder.costs.observe(plan, StepResult(np.zeros(1, np.int32), 1.0, moved=Moved(4, 4 * block_seconds)))
    first_victim(world)
    step = world.scheduler.step
    assert step is not None and {how for _, how in step.preempted} == {expected}


def test_auto_goes_by_the_rule_of_thumb_before_anything_was_measured() -> None:
    world = crowd()
    world.scheduler.builder.how = Auto()
    first_victim(world)
    step = world.scheduler.step
    assert step is not None and {how for _, how in step.preempted} == {"recompute"}, "fewer than 128 tokens"


def test_costs_are_moving_averages_of_what_steps_took() -> None:
    costs = Costs()
    plan = StepPlan(0, *(np.array([value], np.int32) for value in (0, 0, 100)), *([np.zeros(1)] * 4))  # type: ignore[arg-type]
    assert costs.compute(10) is costs.load(1) is costs.swap(1) is None
    costs.observe(plan, StepResult(np.zeros(1, np.int32), 1.5, moved=Moved(10, 0.5)))
    assert costs.compute(100) == pytest.approx(1.0) and costs.swap(1) == pytest.approx(0.1)
    costs.observe(plan, StepResult(np.zeros(1, np.int32), 2.0, moved=Moved(in_blocks=1, in_seconds=0.0)))
    assert costs.compute(100) == pytest.approx(1.2) and costs.swap(2) == pytest.approx(0.1)
    assert costs.load(3) == 0.0 and costs.load(3, disk=1) is None


def test_who_was_preempted_as_often_as_may_be_is_left_alone_while_others_can_yield() -> None:
    world = crowd("most-kv", max_preemptions=1)
    first = first_victim(world)
    assert first == "long"
    victims: list[str] = []
    while len(victims) < 3 and world.live:
        world.turn()
        step = world.scheduler.step
        assert step is not None
        victims += [sequence.id for sequence, _ in step.preempted]
    assert "long" not in victims
    world.drain()


def test_when_all_are_protected_somebody_yields_all_the_same() -> None:
    world = crowd("newest", max_preemptions=1)
    world.drain()
    assert world.scheduler.totals.preemptions > 0
    assert all(sequence.state is SequenceState.FINISHED for sequence in world.ended.values())


# Others who get nowhere: both ran for ever once, with prompts in parts of a token.
PARTS = {"max_num_seqs": 3, "long_prefill_token_threshold": 1}


def test_one_that_comes_back_and_evicts_itself_does_not_keep_the_others_from_running() -> None:
    """Decodes go by arrival, and the first of them is the one admitted last: itself the victim of its wish to grow."""
    config = SchedulerConfig(num_blocks=6, block_size=4, max_num_batched_tokens=3, max_model_len=24, **PARTS)
    world = World(config, "vllm-v0", victim="newest")
    for name in ("a", "b"):
        world.add(Ask(name, (0, 0, 3, 4, 3, 0, 0, 2, 1), max_tokens=15, n=3))
    world.drain()


def test_prompts_that_grow_do_not_take_turns_in_evicting_each_other_for_ever() -> None:
    """Who has most changes while prompts come in parts, so it is not asked who holds most."""
    config = SchedulerConfig(
        num_blocks=17,
        block_size=2,
        max_num_batched_tokens=6,
        max_model_len=33,
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=False,
        **PARTS,
    )
    world = World(config, "vllm", victim="most-kv")
    world.add(Ask("a", (0, 0, 1, 1, 4, 3, 4, 3), max_tokens=14, seed=1))
    world.turn()
    world.add(Ask("b", (0, 0, 1, 1), max_tokens=17, n=2, seed=1))
    world.drain()
