"""Preempted sequences whose K/V are kept: on the host (swap), or in place (hold)."""

from __future__ import annotations

import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.request import SequenceState
from paceline.errors import ConfigError
from tests.core.asks import Ask
from tests.core.world import World


def tight(how: str, num_host_blocks: int = 16, most: int = 6, **settings: object) -> World:
    """Two sequences of 7 prompt tokens in 5 blocks of 4: the younger has to go in the fourth step."""
    config = SchedulerConfig(
        num_blocks=5,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=32,
        num_host_blocks=num_host_blocks,
        **{"enable_prefix_caching": False, **settings},  # type: ignore[arg-type]
    )
    world = World(config, "vllm-v0", knobs={"how": how})
    world.add(Ask("a", tuple(range(100, 107)), max_tokens=most))
    world.add(Ask("b", tuple(range(200, 207)), max_tokens=6))
    return world


def until_preempted(world: World) -> None:
    for _ in range(20):
        world.turn()
        if world.live["b"].state is SequenceState.PREEMPTED:
            return
    raise AssertionError("nobody was preempted")


def test_a_swapped_sequence_comes_back_without_computing_anything_again() -> None:
    world = tight("swap")
    until_preempted(world)
    sequence, step = world.live["b"], world.scheduler.step
    assert step is not None and step.preempted == [(sequence, "swap")] and step.swapped_out == {"b": 2}
    assert len(sequence.swapped) == 2
    world.drain()
    totals = world.scheduler.totals
    assert totals.recomputed_tokens == 0
    assert totals.swapped_out_blocks == totals.swapped_in_blocks > 0


def test_without_room_on_the_host_a_swap_becomes_a_recompute() -> None:
    world = tight("swap", num_host_blocks=1)
    until_preempted(world)
    step = world.scheduler.step
    assert step is not None and [how for _, how in step.preempted] == ["recompute"]
    world.drain()
    assert world.scheduler.totals.swapped_out_blocks == 0 < world.scheduler.totals.recomputed_tokens


def test_what_the_cache_still_has_is_not_copied_from_the_host() -> None:
    world = tight("swap", enable_prefix_caching=True)
    until_preempted(world)
    world.abort("a")
    world.forget_rows_of_ended()
    world.turn()
    step = world.scheduler.step
    assert step is not None and [sequence.id for sequence in step.resumed] == ["b"]
    assert not step.swap_in, "its blocks were still on the device"
    world.drain()


def test_a_held_sequence_comes_back_to_the_same_blocks() -> None:
    world = tight("hold")
    until_preempted(world)
    sequence = world.live["b"]
    blocks = sequence.kept_blocks.tolist()
    world.abort("a")
    world.forget_rows_of_ended()
    world.turn()
    assert sequence.state is SequenceState.RUNNING
    assert world.scheduler.batch.blocks(sequence.row)[: len(blocks)].tolist() == blocks
    world.drain()
    assert world.scheduler.totals.recomputed_tokens == 0


def test_held_blocks_are_taken_when_nothing_else_yields() -> None:
    world = tight("hold", most=12)
    until_preempted(world)
    while "a" in world.live and world.live["b"].kept_tokens:
        world.turn()
    assert "a" in world.live, "the running sequence got the blocks of the held one"
    world.drain()
    assert world.scheduler.totals.recomputed_tokens > 0


@pytest.mark.parametrize("how", ["swap", "hold"])
@pytest.mark.parametrize("leave", ["abort", "finish"])
def test_a_kept_sequence_that_leaves_gives_everything_back(how: str, leave: str) -> None:
    world = tight(how)
    until_preempted(world)
    getattr(world, leave)("b")
    assert not world.scheduler.builder.keeper.sequences
    world.scheduler.check()
    world.drain()


def test_a_swap_that_was_not_executed_leaves_nothing_on_the_host() -> None:
    world = tight("swap")
    while world.live["b"].state is not SequenceState.PREEMPTED or not world.live["b"].lost_tokens:
        world.turn(fail=world.steps == 2)
    sequence = world.live["b"]
    assert sequence.state is SequenceState.PREEMPTED
    world.drain()


@pytest.mark.parametrize("caching", [False, True])
def test_a_return_that_was_not_executed_is_computed_again(caching: bool) -> None:
    """In particular nobody hits the blocks that were to be filled from the host."""
    world = tight("swap", enable_prefix_caching=caching)
    until_preempted(world)
    world.abort("a")
    world.forget_rows_of_ended()
    world.reset()
    plan = world.turn(fail=True)
    assert plan is not None and len(plan.swap_in) == 2
    assert not world.live["b"].swapped
    world.drain()


def test_swapped_sequences_come_back_before_anybody_new_starts() -> None:
    world = tight("swap")
    until_preempted(world)
    world.add(Ask("c", (1, 2), max_tokens=1))
    order = []
    while world.live:
        world.turn()
        step = world.scheduler.step
        assert step is not None
        order += [sequence.id for sequence in (*step.resumed, *step.new)]
    assert order == ["b", "c"]


def test_an_unknown_way_to_preempt_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"--preemption: 'burn' is not valid; .* threshold:TOKENS"):
        tight("burn")


def test_nobody_new_starts_under_fastserve_while_the_host_is_nearly_full() -> None:
    """A long sequence was swapped out for a short one. Where the whole host is to stay free, that is too full."""
    config = SchedulerConfig(
        num_blocks=8, block_size=4, max_num_seqs=3, max_num_batched_tokens=64, max_model_len=48, num_host_blocks=8
    )
    for reserve, started in ((1.0, []), (0.0, ["next"])):
        world = World(config, "fastserve", knobs={"host_reserve": reserve, "base": 4.0, "seconds_per_token": 1.0})
        world.add(Ask("long", tuple(range(100, 116)), max_tokens=12))
        world.turn()
        world.add(Ask("short", tuple(range(4)), max_tokens=24))
        while not world.scheduler.builder.keeper.sequences:
            world.turn()
        world.add(Ask("next", (7, 8, 9), max_tokens=2))
        world.turn()
        step = world.scheduler.step
        assert step is not None and [sequence.id for sequence in step.new] == started
        world.drain()
