"""What is shared: cached prefixes, and the prompt of a request with several sequences."""

from __future__ import annotations

import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.request import FinishReason, SequenceState
from tests.core.asks import Ask
from tests.core.small import scheduled, tokens, world
from tests.core.world import World

# -- cache -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["paceline", "vllm"])
def test_twins_in_one_step_share_their_whole_blocks(discipline: str) -> None:
    w = world(discipline)
    w.add(Ask("a", tokens(10, 10)))
    w.add(Ask("b", tokens(10, 10)))
    plan = w.turn()
    assert scheduled(w, plan) == [("a", 10), ("b", 2)]
    assert w.live["b"].cached_tokens == 8
    assert w.scheduler.stats().blocks_held == 4
    w.drain()


def test_a_hit_inside_a_block_copies_it_and_computes_only_the_rest() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 8), max_tokens=1))
    w.drain_keeping_cache()
    w.add(Ask("b", (*tokens(10, 6), 99, 98)))
    plan = w.turn()
    assert plan is not None and scheduled(w, plan) == [("b", 2)]
    assert plan.starts.tolist() == [6] and len(plan.copies) == 1
    source, destination = plan.copies[0]
    assert destination == plan.block_table[plan.rows[0], 1] != source
    w.drain()


def test_a_block_of_this_very_step_is_shared_whole_but_never_copied_from() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 8)))
    w.add(Ask("b", (*tokens(10, 6), 99, 98)))
    plan = w.turn()
    assert plan is not None and scheduled(w, plan) == [("a", 8), ("b", 4)] and not plan.copies.size
    w.drain()


def test_one_token_is_always_left_to_compute() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 8), max_tokens=1))
    w.drain_keeping_cache()
    w.add(Ask("b", tokens(10, 8)))
    plan = w.turn()
    assert plan is not None and plan.starts.tolist() == [7] and plan.counts.tolist() == [1]
    w.drain()


def test_generated_tokens_are_cached_too() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 5), max_tokens=8))
    w.drain_keeping_cache()
    said = tuple(w.references["a"].tokens)
    w.add(Ask("b", (*said, 99)))
    w.turn()
    assert w.live["b"].cached_tokens == 12, "all 12 tokens with K/V lie in whole blocks"
    w.drain()


def test_salts_keep_caches_apart() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 9), max_tokens=1, salt="x"))
    w.drain_keeping_cache()
    w.add(Ask("same", tokens(10, 9), salt="x"))
    w.add(Ask("other", tokens(10, 9), salt="y"))
    w.add(Ask("none", tokens(10, 9)))
    w.turn()
    assert [w.live[name].cached_tokens for name in ("same", "other", "none")] == [8, 0, 0]
    w.drain()


def test_prompt_logprobs_take_nothing_from_the_cache() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 9), max_tokens=1))
    w.drain_keeping_cache()
    w.add(Ask("b", tokens(10, 9), prompt_logprobs=0))
    assert scheduled(w, w.turn()) == [("b", 9)]
    w.drain()


def test_prompt_logprobs_beside_cached_twins_of_their_blocks_finish() -> None:
    """What is computed again must not pin the cached copy as well, or a pool that holds it once is too small."""
    w = world(num_blocks=6, max_num_batched_tokens=8, max_model_len=24)
    w.add(Ask("a", tokens(10, 15), max_tokens=1))
    w.drain_keeping_cache()
    w.add(Ask("b", tokens(10, 15), max_tokens=8, prompt_logprobs=0))
    w.drain()


def test_a_victim_whose_block_another_computed_as_well_leaves_it_to_that_one() -> None:
    """Two rows complete equal blocks in the step in which the first is preempted for a third."""
    w = world(num_blocks=23, max_num_seqs=3, max_num_batched_tokens=8, long_prefill_token_threshold=2)
    w.add(Ask("c", tokens(10, 59), max_tokens=2))
    w.add(Ask("a", (1, 1, 1), max_tokens=50, priority=5))
    w.add(Ask("b", (1, 1, 1), max_tokens=50))
    w.drain()
    assert w.ended["a"].preemptions > 0


# -- forks -------------------------------------------------------------------------------------------------------------


def test_forks_copy_the_leaders_last_block_and_compute_one_token_each() -> None:
    w = world()
    w.add(Ask("r", tokens(10, 10), n=3, seed=1))
    assert scheduled(w, w.turn()) == [("r", 10)]
    plan = w.turn()
    assert plan is not None and scheduled(w, plan) == [("r", 1), ("r#1", 1), ("r#2", 1)]
    assert plan.starts.tolist() == [10, 9, 9]
    leader = int(plan.block_table[plan.rows[0], 2])
    assert plan.copies[:, 0].tolist() == [leader, leader]
    w.drain()


def test_forks_of_a_prompt_that_ends_with_a_block_recompute_its_last_token_in_a_copy() -> None:
    w = world()
    w.add(Ask("r", tokens(10, 8), n=2, seed=1))
    w.turn()
    plan = w.turn()
    assert plan is not None and plan.starts.tolist() == [8, 7] and len(plan.copies) == 1
    w.drain()


def test_siblings_wait_for_the_leaders_prompt_and_say_so() -> None:
    w = world(max_num_batched_tokens=8)
    w.add(Ask("r", tokens(10, 20), n=3))
    w.turn()
    assert w.live["r#1"].state is SequenceState.BLOCKED
    assert w.scheduler.why() == {"r#1": "fork: r computes the prompt first", "r#2": "fork: r computes the prompt first"}
    w.drain()


def test_the_discipline_vllm_treats_siblings_as_requests_of_their_own() -> None:
    w = world("vllm")
    w.add(Ask("r", tokens(10, 10), n=2))
    assert scheduled(w, w.turn()) == [("r", 10), ("r#1", 2)]
    w.drain()


def test_when_the_leader_ends_first_the_siblings_start_in_order_without_it() -> None:
    w = world(max_num_batched_tokens=8)
    w.add(Ask("r", tokens(10, 20), n=3))
    w.turn()
    w.act([("finish", "r")])
    w.forget_rows_of_ended()
    assert [sequence.id for sequence in w.scheduler.waiting] == ["r#1", "r#2"]
    w.drain()
    assert all(w.ended[name].finish_reason is FinishReason.LENGTH for name in ("r#1", "r#2"))


def test_a_leader_that_ends_with_its_first_token_leaves_its_blocks_to_the_siblings() -> None:
    w = world()
    w.add(Ask("r", tokens(10, 10), n=2, max_tokens=1))
    w.turn()
    plan = w.turn()
    assert plan is not None and plan.starts.tolist() == [8] and not plan.copies.size
    w.empty()


def test_siblings_do_not_copy_from_a_leader_that_left_and_came_back() -> None:
    """A leader resumed in the step in which its sibling starts writes its last block only in that step."""
    w = world(max_num_seqs=2)
    w.add(Ask("other", tokens(100, 3), max_tokens=9))
    w.add(Ask("r", tokens(10, 6), n=2, max_tokens=4))
    w.turn()
    assert w.live["r#1"].state is SequenceState.WAITING
    w.turn(mid=[("abort", "other")], fail=True)
    plan = w.turn()
    assert scheduled(w, plan) == [("r", 7), ("r#1", 2)], "its whole block is shared in the step, the rest computed"
    w.drain()


def test_a_sibling_that_was_preempted_does_not_take_the_leaders_text_for_its_own() -> None:
    """Both have gone on in their own ways in the block that the sibling once copied."""
    w = World(
        SchedulerConfig(num_blocks=5, block_size=8, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40),
        knobs={"growth": 0},
    )
    w.add(Ask("big", tokens(100, 20), max_tokens=6, priority=-1))
    w.turn()
    w.add(Ask("r", tokens(10, 2), n=2, max_tokens=12, seed=5))
    w.drain()
    assert w.ended["r#1"].preemptions > 0 and w.ended["r"].preemptions == 0


def test_greedy_forks_all_say_the_same() -> None:
    w = world()
    w.add(Ask("r", tokens(10, 7), n=4, max_tokens=9))
    w.drain()
    assert len({tuple(w.ended[name].tokens.tolist()) for name in ("r", "r#1", "r#2", "r#3")}) == 1
