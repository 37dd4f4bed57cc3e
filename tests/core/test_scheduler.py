"""What the scheduler decides in small situations, written out."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.head_of_line import Skip
from paceline.core.plan import StepResult
from paceline.core.request import FinishReason, SequenceState
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError
from tests.core.asks import Ask
from tests.core.small import scheduled, tokens, world

# -- steps -------------------------------------------------------------------------------------------------------------


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


# -- who is next -------------------------------------------------------------------------------------------------------


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


# -- misuse ------------------------------------------------------------------------------------------------------------


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


# -- what it counts ----------------------------------------------------------------------------------------------------


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
