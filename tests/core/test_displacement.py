"""A waiting sequence of better priority takes the place of running ones: as few as will do, or of nobody."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.config import SchedulerConfig
from tests.core.asks import Ask
from tests.core.world import World


def world(knobs: dict[str, Any] | None = None, discipline: str = "paceline", **settings: Any) -> World:
    defaults = {
        "num_blocks": 12,
        "block_size": 4,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 64,
        "max_model_len": 48,
        "num_host_blocks": 16,
        "enable_prefix_caching": False,
    }
    eager = {"growth": 0} if discipline == "paceline" else {}
    return World(SchedulerConfig(**{**defaults, **settings}), discipline, "priority", {**eager, **(knobs or {})})


def fill(world: World, priorities: tuple[int, ...] = (5, 5, 5), tokens: int = 8) -> None:
    for index, priority in enumerate(priorities):
        world.add(Ask(f"low{index}", tuple(range(100 * index, 100 * index + tokens)), max_tokens=8, priority=priority))
    world.turn()
    assert world.scheduler.num_running == len(priorities)


def turn(world: World) -> tuple[list[str], list[str]]:
    """Who was preempted and who started."""
    world.turn()
    step = world.scheduler.step
    assert step is not None
    return [sequence.id for sequence, _ in step.preempted], [sequence.id for sequence in step.new]


def high(world: World, tokens: int = 8, priority: int = 0) -> None:
    world.add(Ask("high", tuple(range(1000, 1000 + tokens)), max_tokens=4, priority=priority))


def test_a_row_is_taken_from_one_of_worse_priority() -> None:
    here = world()
    fill(here)
    high(here)
    gone, started = turn(here)
    assert gone == ["low2"] and started == ["high"], "of equals the newest"
    assert here.scheduler.totals.displaced == 1
    here.drain()


def test_the_worst_priority_goes_first() -> None:
    here = world()
    fill(here, (5, 9, 5))
    high(here)
    assert turn(here)[0] == ["low1"]
    here.drain()


def test_blocks_are_taken_from_as_few_as_will_do() -> None:
    here = world(max_num_seqs=6)
    for index, tokens in enumerate((4, 16, 4, 4)):
        here.add(Ask(f"low{index}", tuple(range(100 * index, 100 * index + tokens)), max_tokens=9, priority=5))
    here.turn()
    high(here, tokens=20)
    gone, started = turn(here)
    assert gone == ["low1"] and started == ["high"]
    here.drain()


def test_nobody_goes_where_that_would_not_be_enough() -> None:
    here = world(max_num_seqs=6)
    fill(here, (5, 0, 0), tokens=12)
    high(here, tokens=30)
    gone, started = turn(here)
    assert gone == [] == started
    assert here.scheduler.why()["high"].startswith("KV: needs")
    here.drain()


@pytest.mark.parametrize(("priority", "goes"), [(5, False), (4, False), (3, False), (2, True)])
def test_hysteresis_is_the_number_of_levels_that_are_not_worth_it(priority: int, goes: bool) -> None:
    here = world({"hysteresis": 2})
    fill(here)
    high(here, priority=priority)
    assert turn(here) == ((["low2"], ["high"]) if goes else ([], []))
    here.drain()


def test_who_was_preempted_often_enough_is_left_alone() -> None:
    here = world(max_preemptions=1)
    fill(here, (5,))
    here.turn()
    for index in range(3):
        here.add(Ask(f"mid{index}", tuple(range(500 + 9 * index, 508 + 9 * index)), max_tokens=30, priority=1))
    gone, _ = turn(here)
    assert gone == ["low0"]
    here.drain()
    assert all(sequence.preemptions <= 1 for sequence in here.ended.values())


def test_it_is_an_option_of_other_rows() -> None:
    for displace in (False, True):
        here = world({"displace": displace}, "sarathi")
        fill(here)
        high(here)
        assert bool(turn(here)[0]) is displace
        here.drain()


def test_a_victim_whose_row_alone_was_wanted_is_held_under_auto() -> None:
    here = world({"how": "auto"}, num_blocks=40)
    fill(here)
    high(here)
    here.turn()
    step = here.scheduler.step
    assert step is not None and [how for _, how in step.preempted] == ["hold"]
    here.drain()
    assert here.scheduler.totals.recomputed_tokens == 0


def test_without_priorities_nobody_is_displaced() -> None:
    here = World(
        SchedulerConfig(num_blocks=12, block_size=4, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=48)
    )
    fill(here, (5, 5))
    high(here)
    assert turn(here) == ([], [])
    here.drain()
