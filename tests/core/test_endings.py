"""How sequences end: from outside, and by what they sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.core.plan import StepResult
from paceline.core.request import FinishReason, SequenceState, StepEvents
from paceline.core.scheduler import Scheduler
from paceline.errors import RequestError
from tests.core.asks import Ask
from tests.core.small import crowded, scheduled, tokens, world

# -- aborts and ends from outside --------------------------------------------------------------------------------------


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


# -- ends --------------------------------------------------------------------------------------------------------------


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
