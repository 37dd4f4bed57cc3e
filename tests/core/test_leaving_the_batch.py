"""Preempted sequences and failed steps: what comes back, and what leaves no trace."""

from __future__ import annotations

import pytest

from paceline.core.request import SequenceState
from tests.core.asks import Ask
from tests.core.small import crowded, tokens, world


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
