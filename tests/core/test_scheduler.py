"""The scheduler by example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.head_of_line import Skip
from paceline.core.plan import StepPlan, StepResult
from paceline.core.request import FinishReason, SequenceState, StepEvents
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError, RequestError
from tests.core.driver import Ask, World


def world(discipline: str = "paceline", order: str | None = None, **settings: Any) -> World:
    defaults: dict[str, Any] = {
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
    }
    return World(SchedulerConfig(**{**defaults, **settings}), discipline, order)


def tokens(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def scheduled(world: World, plan: StepPlan | None) -> list[tuple[str, int]]:
    """(sequence, tokens) in the order decided; only before anybody of the step ends."""
    if plan is None:
        return []
    names = {sequence.row: sequence.id for sequence in world.live.values() if sequence.row >= 0}
    return [(names.get(row, "?"), count) for row, count in zip(plan.rows.tolist(), plan.counts.tolist(), strict=True)]


# -- steps ------------------------------------------------------------------------------------------------------------


def test_a_request_is_prefilled_then_decodes_one_token_a_step() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 5), max_tokens=3))
    assert scheduled(w, w.turn()) == [("a", 5)]
    assert scheduled(w, w.turn()) == [("a", 1)]
    assert w.live["a"].state is SequenceState.RUNNING
    w.turn()
    assert w.ended["a"].finish_reason is FinishReason.LENGTH
    w.empty()


def test_decodes_come_before_unfinished_prompts() -> None:
    w = world(max_num_batched_tokens=8, long_prefill_token_threshold=5)
    w.add(Ask("long", tokens(10, 30), max_tokens=2))
    w.add(Ask("short", tokens(100, 2), max_tokens=9))
    w.add(Ask("third", tokens(200, 1), max_tokens=9))
    assert scheduled(w, w.turn()) == [("long", 5), ("short", 2), ("third", 1)]
    assert scheduled(w, w.turn()) == [("short", 1), ("third", 1), ("long", 5)]
    w.drain()


def test_the_discipline_vllm_serves_rows_in_order_of_admission_instead() -> None:
    results = {}
    for name in ("paceline", "vllm"):
        w = world(name, max_num_batched_tokens=8, long_prefill_token_threshold=6)
        w.add(Ask("long", tokens(10, 40), max_tokens=2))
        w.add(Ask("short", tokens(100, 2), max_tokens=9))
        w.turn()
        results[name] = scheduled(w, w.turn())
    assert results == {"paceline": [("short", 1), ("long", 6)], "vllm": [("long", 6), ("short", 1)]}


def test_a_prompt_longer_than_the_budget_is_cut_into_contiguous_chunks() -> None:
    w = world(max_num_batched_tokens=8, max_num_seqs=8)
    w.add(Ask("a", tokens(10, 21), max_tokens=1))
    for _ in range(3):
        w.turn()
    assert w.chunks["a"] == [(0, 8), (8, 8), (16, 5)] and "a" in w.ended


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_the_budget_whole() -> None:
    w = world(max_num_batched_tokens=64, enable_chunked_prefill=False)
    w.add(Ask("a", tokens(10, 40)))
    w.add(Ask("b", tokens(100, 40)))
    assert scheduled(w, w.turn()) == [("a", 40)]
    assert w.scheduler.why() == {"b": "budget: needs 40 tokens at once and 24 are left"}
    assert scheduled(w, w.turn()) == [("a", 1), ("b", 40)]


def test_the_budget_is_shared_by_all_and_never_exceeded() -> None:
    w = world(max_num_batched_tokens=10)
    for index in range(3):
        w.add(Ask(f"r{index}", tokens(100 * index, 6)))
    assert scheduled(w, w.turn()) == [("r0", 6), ("r1", 4)]
    assert scheduled(w, w.turn()) == [("r0", 1), ("r1", 2), ("r2", 6)]
    w.drain()


def test_nothing_to_do_gives_no_plan() -> None:
    assert world().scheduler.schedule(0.0) is None


def test_no_more_than_max_num_seqs_run() -> None:
    w = world(max_num_seqs=2)
    for index in range(3):
        w.add(Ask(f"r{index}", tokens(100 * index, 4)))
    w.turn()
    assert w.scheduler.num_running == 2 and w.scheduler.num_waiting == 1
    assert w.scheduler.why() == {"r2": "slots: all 2 are taken"}
    w.drain()


# -- cache ------------------------------------------------------------------------------------------------------------


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


# -- forks ------------------------------------------------------------------------------------------------------------


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


# -- preemption -------------------------------------------------------------------------------------------------------


def crowded(discipline: str = "paceline", order: str | None = None, **settings: Any) -> World:
    """Two that both fit at first but not to their end."""
    w = world(discipline, order, num_blocks=8, max_model_len=30, **settings)
    w.add(Ask("old", tokens(10, 4), max_tokens=24, seed=1))
    w.add(Ask("new", tokens(100, 4), max_tokens=24, seed=1))
    return w


@pytest.mark.parametrize("discipline", ["paceline", "vllm"])
def test_a_preempted_sequence_resumes_with_the_blocks_that_survived(discipline: str) -> None:
    w = crowded(discipline)
    w.turn()
    while not w.scheduler.totals.preemptions:
        w.turn()
    victim = w.live["new"]
    assert victim.state is SequenceState.PREEMPTED and victim.row == -1
    assert "KV" in w.scheduler.why()["new"]
    known = victim.tokens.size
    while victim.state is not SequenceState.RUNNING:
        w.turn()
    resumed = next(line for line in reversed(w.log) if '"entered": [[' in line)
    assert '"new"' in resumed and w.chunks["new"][0][0] > 0, f"nothing of {known} tokens was found again"
    w.drain()
    totals = w.scheduler.totals
    assert totals.preemptions == 1 and totals.resumed_hit_tokens > 0
    assert totals.recomputed_tokens == victim.recomputed_tokens > 0


def test_nobody_starts_in_a_step_that_preempts() -> None:
    w = crowded(max_num_seqs=4)
    w.turn()
    w.add(Ask("tiny", (1,), max_tokens=1))
    while not w.scheduler.totals.preemptions:
        w.turn()
        if "tiny" in w.ended:
            w.add(Ask(f"tiny{w.steps}", (1,), max_tokens=1))
            w.ended.pop("tiny")
    assert w.scheduler.step is not None and not w.scheduler.step.new and not w.scheduler.step.resumed
    w.drain()


def test_the_victim_has_the_worst_priority_even_if_it_came_first() -> None:
    w = world(num_blocks=8, max_model_len=30)
    w.add(Ask("cheap", tokens(10, 4), max_tokens=24, priority=3))
    w.add(Ask("dear", tokens(100, 4), max_tokens=24, priority=1))
    w.drain()
    assert w.ended["cheap"].preemptions > 0 and w.ended["dear"].preemptions == 0


def test_the_oldest_of_equals_is_never_preempted() -> None:
    w = crowded()
    w.drain()
    assert w.ended["old"].preemptions == 0 and w.ended["new"].preemptions > 0


def test_a_step_that_fails_is_undone_and_its_sequences_wait_in_their_old_order() -> None:
    w = world()
    for name, first in (("a", 10), ("b", 100), ("c", 200)):
        w.add(Ask(name, tokens(first, 9)))
    w.turn()
    w.turn(fail=True)
    assert [sequence.id for sequence in w.scheduler.waiting] == ["a", "b", "c"]
    plan = w.turn()
    assert plan is not None and plan.starts.tolist() == [8, 8, 8], "what earlier steps computed stays cached"
    w.drain()


def test_a_failed_step_leaves_no_trace_of_blocks_it_did_not_write() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 8)))
    w.turn(fail=True)
    plan = w.turn()
    assert plan is not None and plan.starts.tolist() == [0]
    w.drain()


def test_a_failed_step_whose_sequence_was_aborted_meanwhile_leaves_no_trace_either() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 8)))
    w.turn(mid=[("abort", "a")], fail=True)
    w.add(Ask("b", tokens(10, 8)))
    plan = w.turn()
    assert plan is not None and plan.starts.tolist() == [0]
    w.drain()


# -- who is next ------------------------------------------------------------------------------------------------------


def test_a_head_that_does_not_fit_is_overtaken_a_bounded_number_of_times() -> None:
    row = discipline_named("paceline").with_knobs({"most": 3})
    w = world(num_blocks=10, max_model_len=44)
    w.scheduler = Scheduler(w.config, row)
    w.add(Ask("running", tokens(10, 8), max_tokens=20))
    w.turn()
    w.add(Ask("head", tokens(100, 36), max_tokens=1))
    overtook = []
    for index in range(6):
        w.add(Ask(f"small{index}", (index,), max_tokens=1))
        w.turn()
        if f"small{index}" in w.ended:
            overtook.append(index)
    assert overtook == [0, 1, 2] and w.live["head"].overtaken == 3
    assert w.scheduler.why()["small5"].startswith("behind head (KV: needs 9 blocks")
    w.drain()
    assert isinstance(row.head_of_line, Skip)


def test_under_stop_nobody_overtakes() -> None:
    w = world("vllm", num_blocks=10, max_model_len=44)
    w.add(Ask("running", tokens(10, 8), max_tokens=20))
    w.turn()
    w.add(Ask("head", tokens(100, 36), max_tokens=1))
    w.add(Ask("small", (1,), max_tokens=1))
    w.turn()
    assert w.scheduler.num_running == 1
    assert w.scheduler.why()["small"].startswith("behind head (KV: needs 9 blocks and 7 are free")
    w.drain()


@pytest.mark.parametrize("discipline", ["paceline", "vllm"])
def test_priority_decides_who_starts_then_arrival_then_name(discipline: str) -> None:
    w = world(discipline, "priority", max_num_seqs=1)
    for ask in (
        Ask("late", (1,), priority=1, arrival=9.0, max_tokens=1),
        Ask("b", (2,), priority=1, arrival=1.0, max_tokens=1),
        Ask("a", (3,), priority=1, arrival=1.0, max_tokens=1),
        Ask("urgent", (4,), priority=-1, arrival=99.0, max_tokens=1),
    ):
        w.add(ask)
    w.drain()
    assert list(w.ended) == ["urgent", "a", "b", "late"]


def test_an_unknown_discipline_or_order_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"--discipline: 'nosuch' .*paceline"):
        Scheduler(SchedulerConfig(num_blocks=1), "nosuch")
    with pytest.raises(ConfigError, match=r"--order: 'nosuch' .*fcfs"):
        discipline_named("paceline", "nosuch")


# -- aborts and ends from outside -------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["paceline", "vllm"])
@pytest.mark.parametrize("moment", ["waiting", "prefilling", "decoding", "mid-step", "preempted"])
def test_an_abort_in_any_state_gives_everything_back(discipline: str, moment: str) -> None:
    w = crowded(discipline, max_num_batched_tokens=8 if moment != "prefilling" else 3, max_num_seqs=3)
    mid: list[tuple[str, Any]] = []
    if moment != "waiting":
        w.turn()
    if moment in ("decoding", "preempted"):
        w.turn()
    while moment == "preempted" and w.live["new"].state is not SequenceState.PREEMPTED:
        w.turn()
    if moment == "mid-step":
        mid = [("abort", "new"), ("abort", "new")]
    else:
        w.act([("abort", "new"), ("abort", "new")])
    w.turn(mid=mid)
    assert w.ended["new"].finish_reason is FinishReason.ABORT
    w.drain()


def test_an_abort_ends_all_siblings_blocked_ones_too() -> None:
    w = world(max_num_batched_tokens=8)
    w.add(Ask("r", tokens(10, 20), n=3))
    w.turn()
    w.act([("abort", "r")])
    w.forget_rows_of_ended()
    assert set(w.ended) == {"r", "r#1", "r#2"}
    w.empty()


def test_aborting_the_unknown_does_nothing() -> None:
    assert world().scheduler.abort("nobody", 0.0) == []


def test_finish_ends_once_and_says_so() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 4)))
    w.turn()
    assert w.scheduler.finish("a", FinishReason.STOP, 1.0) is True
    assert w.scheduler.finish("a", FinishReason.STOP, 1.0) is False
    assert w.scheduler.finish("nobody", FinishReason.STOP, 1.0) is False
    assert not w.scheduler.has_work()


def test_a_token_of_a_sequence_aborted_mid_step_is_dropped_and_the_others_keep_theirs() -> None:
    w = world()
    for name, first in (("a", 10), ("b", 100), ("c", 200)):
        w.add(Ask(name, tokens(first, 4)))
    plan = w.scheduler.schedule(0.0)
    assert plan is not None
    w.scheduler.abort("b", 0.0)
    events: StepEvents = w.scheduler.complete(StepResult(tokens=np.array([1, 2, 3], np.int32)), 1.0)
    assert [sequence.id for sequence in events.sequences] == ["a", "c"]
    assert events.tokens.tolist() == [1, 3] and events.sampled.tolist() == [0, 2]


# -- ends -------------------------------------------------------------------------------------------------------------


def said(scheduler: Scheduler, emitted: list[int]) -> StepEvents:
    events = None
    for token in emitted:
        assert scheduler.schedule(0.0) is not None
        events = scheduler.complete(StepResult(tokens=np.array([token], np.int32)), 0.0)
    assert events is not None
    return events


def test_end_of_sequence_ends_unless_ignored() -> None:
    for ignore, ends in ((False, True), (True, False)):
        w = world(eos_token_ids=(7, 8))
        w.scheduler.add(w.request(Ask("a", (1, 2), ignore_eos=ignore)), 0.0)
        assert bool(said(w.scheduler, [5, 8]).finished) is ends


def test_no_stop_token_counts_before_min_tokens() -> None:
    w = world(eos_token_ids=(7,))
    w.scheduler.add(w.request(Ask("a", (1, 2), max_tokens=8, min_tokens=3, ignore_eos=False, stop_token_ids=(9,))), 0.0)
    assert not said(w.scheduler, [7, 9]).finished
    finished = said(w.scheduler, [9]).finished
    assert finished[0].finish_reason is FinishReason.STOP and finished[0].stop_token == 9


def test_end_of_sequence_is_not_reported_as_a_stop_token_of_the_request() -> None:
    w = world(eos_token_ids=(7,))
    w.scheduler.add(w.request(Ask("a", (1, 2), ignore_eos=False, stop_token_ids=(7, 9))), 0.0)
    assert said(w.scheduler, [7]).finished[0].stop_token is None


def test_the_context_ends_a_sequence_without_max_tokens() -> None:
    w = world(max_model_len=12)
    w.add(Ask("a", tokens(10, 5), max_tokens=None))
    w.drain()
    assert w.ended["a"].tokens.size == 12 and w.ended["a"].finish_reason is FinishReason.LENGTH


def test_the_pool_ends_a_sequence_without_max_tokens() -> None:
    w = world(num_blocks=2)
    w.add(Ask("a", tokens(10, 5), max_tokens=None))
    w.drain()
    assert w.ended["a"].tokens.size == 9, "eight places, and a last token that needs none"


def test_a_request_taken_over_goes_on_where_it_was() -> None:
    w = world()
    w.add(Ask("r", tokens(10, 6), n=3, max_tokens=8, seed=3, resumed=((0, 5), (2, 0))))
    assert scheduled(w, w.turn())[0] == ("r", 11)
    w.drain()
    assert set(w.ended) == {"r", "r#2"}


def test_a_sequence_that_has_all_its_tokens_cannot_be_resumed() -> None:
    w = world()
    with pytest.raises(RequestError, match=r"sequence 1 to resume has 6 prompt and 4 generated tokens, and 10 in all"):
        w.scheduler.add(w.request(Ask("r", tokens(10, 6), n=2, max_tokens=4, resumed=((0, 3), (1, 4)))), 0.0)
    assert not w.scheduler.has_work()


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "settings", "message"),
    [
        (Ask("a", ()), {}, "the prompt is empty"),
        (Ask("a", tokens(1, 64)), {}, "the prompt has 64 tokens, but the context holds 64"),
        (
            Ask("a", tokens(1, 10), max_tokens=30),
            {"num_blocks": 9},
            "10 prompt tokens and 30 to generate need 10 KV blocks",
        ),
        (Ask("a", tokens(1, 10), max_tokens=30), {"num_blocks": 9}, "of 4 tokens, but there are 9 in all; shorten"),
        (Ask("a", tokens(1, 41), max_tokens=None), {"num_blocks": 10}, "41 prompt tokens and 0 to generate need 11"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(ask: Ask, settings: dict[str, int], message: str) -> None:
    w = world(**settings)
    with pytest.raises(RequestError, match=message) as caught:
        w.scheduler.add(w.request(ask), 0.0)
    assert caught.value.status == 400 and caught.value.param
    assert not w.scheduler.has_work() and w.scheduler.schedule(0.0) is None


def test_what_just_fits_is_taken_and_finishes() -> None:
    w = world(num_blocks=10)
    w.add(Ask("a", tokens(1, 10), max_tokens=31))
    w.drain()
    assert w.ended["a"].tokens.size == 41


def test_the_last_place_of_the_context_is_for_a_generated_token() -> None:
    w = world()
    w.add(Ask("a", tokens(1, 63), max_tokens=40))
    w.drain()
    assert w.ended["a"].tokens.size == 64


def test_an_id_in_use_is_refused_until_it_ended() -> None:
    w = world()
    w.add(Ask("a", (1, 2), max_tokens=1))
    with pytest.raises(RequestError, match="'a' is already in use"):
        w.scheduler.add(w.request(Ask("a", (3,))), 0.0)
    w.drain_keeping_cache()
    assert w.add(Ask("a", (3,)))
    w.drain()


@pytest.mark.parametrize(("first", "second"), [(("r", 2), ("r#1", 1)), (("r#1", 1), ("r", 2))])
def test_an_id_that_is_the_name_of_a_live_sequence_is_refused(first: tuple[str, int], second: tuple[str, int]) -> None:
    w = world()
    w.add(Ask(first[0], (1, 2), n=first[1]))
    with pytest.raises(RequestError, match="'r#1' is already in use"):
        w.scheduler.add(w.request(Ask(second[0], (3,), n=second[1])), 0.0)
    assert w.scheduler.num_waiting == first[1]
    w.drain()


def test_a_name_that_only_looks_like_a_sequence_of_another_request_is_taken() -> None:
    w = world()
    w.add(Ask("r", (1, 2), n=2))
    assert w.add(Ask("r#2", (3,)))
    w.drain()


# -- misuse -----------------------------------------------------------------------------------------------------------


def test_calls_out_of_turn_raise_and_change_nothing() -> None:
    w = world()
    scheduler = w.scheduler
    with pytest.raises(RuntimeError, match="complete"):
        scheduler.complete(StepResult(tokens=np.zeros(0, np.int32)), 0.0)
    with pytest.raises(RuntimeError, match="fail"):
        scheduler.fail(0.0)
    w.add(Ask("a", (1, 2)))
    scheduler.schedule(0.0)
    with pytest.raises(RuntimeError, match="schedule"):
        scheduler.schedule(0.0)
    scheduler.complete(StepResult(tokens=np.array([3], np.int32)), 0.0)
    with pytest.raises(RuntimeError, match="complete"):
        scheduler.complete(StepResult(tokens=np.array([3], np.int32)), 0.0)
    scheduler.check()


def test_a_result_of_the_wrong_size_is_refused_and_the_step_can_still_be_failed() -> None:
    w = world()
    w.add(Ask("a", (1, 2)))
    w.scheduler.schedule(0.0)
    with pytest.raises(ValueError, match="samples 1 tokens, the executor returned 2"):
        w.scheduler.complete(StepResult(tokens=np.array([3, 4], np.int32)), 0.0)
    w.scheduler.fail(0.0)
    assert w.scheduler.why() and w.scheduler.schedule(0.0) is not None


# -- what it counts ---------------------------------------------------------------------------------------------------


def test_stats_count_what_happened() -> None:
    w = world()
    w.add(Ask("a", tokens(10, 9), max_tokens=3))
    w.turn()
    stats = w.scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_held, stats.blocks_cached) == (1, 0, 3, 0)
    w.add(Ask("b", tokens(10, 9), max_tokens=3))
    w.drain_keeping_cache()
    totals = w.scheduler.stats().totals
    assert totals.steps == w.steps == 4
    assert totals.prompt_tokens == totals.prefix_query_tokens == 18
    assert totals.prefix_hit_tokens == 8
    assert totals.generation_tokens == 6 and totals.finished == 2 and totals.preemptions == 0
    assert totals.scheduled_tokens == 9 + 1 + (9 - 8) + 2 + 2 - 1 - 1 + 1
    stats = w.scheduler.stats()
    assert stats.blocks_held == 0 and stats.blocks_cached == 2 and stats.blocks_free == 62


def test_first_scheduled_and_first_token_times_are_kept() -> None:
    w = world(max_num_seqs=1)
    w.add(Ask("a", (1, 2), max_tokens=2))
    w.add(Ask("b", (3, 4), max_tokens=2))
    w.drain()
    assert (w.ended["a"].first_scheduled, w.ended["a"].first_token) == (0.0, 1.0)
    assert (w.ended["b"].first_scheduled, w.ended["b"].first_token) == (2.0, 3.0)


def test_a_late_arrival_waits_as_new() -> None:
    w = world()
    w.add(Ask("a", (1, 2)))
    w.turn(mid=[("add", Ask("b", (3,)))])
    assert w.scheduler.why() == {"b": "new: arrived after the last step was scheduled"}
    w.drain()
