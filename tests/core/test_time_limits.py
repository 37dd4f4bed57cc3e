"""Time limits: who waits or takes too long is ended, at once and at no cost to the others."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from paceline.core.disciplines import DISCIPLINES
from paceline.core.params import SamplingParams
from paceline.core.plan import StepResult
from paceline.core.request import FinishReason, Request, Sequence
from paceline.core.scheduler import Scheduler


def scheduler_of(row: str = "paceline", seqs: int = 1) -> Scheduler:
    settings = {"num_blocks": 256, "block_size": 4, "max_num_seqs": seqs, "max_num_batched_tokens": 64}
    return Scheduler(DISCIPLINES[row].configure(**settings, max_model_len=64), row)


def ask(scheduler: Scheduler, name: str, now: float, tokens: int = 20, n: int = 1, **limits: Any) -> list[Sequence]:
    prompt = np.frombuffer(name.encode() + b"1234", np.uint8).astype(np.int32)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, n=n)
    return scheduler.add(Request(name, prompt, params, arrival=now, **limits), now)


def step(scheduler: Scheduler, now: float) -> list[str]:
    """The ids of the sequences that the scheduler ended by itself before the step."""
    plan = scheduler.schedule(now)
    ended = [sequence.id for sequence in scheduler.take_ended()]
    if plan is not None:
        scheduler.complete(StepResult(np.zeros(int(plan.samples.sum()), np.int32)), now)
    scheduler.check()
    return ended


def test_who_waits_longer_than_it_may_is_ended_and_who_started_is_not() -> None:
    scheduler = scheduler_of()
    (runs,) = ask(scheduler, "a", 0.0, queue_timeout=1.0)
    (waits,) = ask(scheduler, "b", 0.0, queue_timeout=2.0)
    assert step(scheduler, 0.0) == []
    assert step(scheduler, 1.9) == []
    assert step(scheduler, 2.0) == ["b"]
    assert (waits.finish_reason, waits.finish_detail) == (
        FinishReason.EXPIRED,
        "queue_timeout: it may wait 2 s and has waited 2.000 s",
    )
    assert runs.finish_reason is None


def test_who_takes_longer_than_it_may_is_ended_with_what_it_has() -> None:
    scheduler = scheduler_of(seqs=2)
    (sequence,) = ask(scheduler, "a", 0.0, timeout=1.0)
    for now in (0.0, 0.3, 0.6, 0.9):
        assert step(scheduler, now) == []
    assert step(scheduler, 1.2) == ["a"]
    assert sequence.tokens.size == sequence.prompt_length + 4
    assert sequence.finish_detail == "timeout: it may take 1 s and has taken 1.200 s"
    assert not scheduler.has_work() and scheduler.stats().blocks_held == 0


def test_all_sequences_of_a_request_are_late_together() -> None:
    scheduler = scheduler_of(seqs=4)
    ask(scheduler, "a", 0.0, n=3, timeout=1.0)
    ask(scheduler, "b", 0.0, n=3, queue_timeout=1.0)
    for now in (0.0, 0.1, 0.2):
        step(scheduler, now)
    assert sorted(step(scheduler, 1.0)) == ["a", "a#1", "a#2"]  # b started, even if not all of it
    assert scheduler.num_requests == 1


def test_an_empty_step_says_when_somebody_will_be_late() -> None:
    scheduler = scheduler_of()
    from paceline.core.quotas import Quota, Quotas, Rate

    scheduler.set_quotas(Quotas(Quota(requests=Rate(0.001, 1))), 0.0)
    ask(scheduler, "a", 0.0, tokens=1)
    step(scheduler, 0.0)
    ask(scheduler, "b", 0.0, queue_timeout=3.0)
    step(scheduler, 1.0)
    assert scheduler.step is not None and scheduler.step.wake == 3.0
    assert step(scheduler, 3.0) == ["b"]


@pytest.mark.parametrize("row", DISCIPLINES)
def test_every_discipline_keeps_deadlines(row: str) -> None:
    scheduler = scheduler_of(row, seqs=4)
    for name in "abcdefgh":
        ask(scheduler, name, 0.0, timeout=2.0)
    ended = []
    now = 0.0
    while scheduler.has_work():
        ended += step(scheduler, now)
        now += 0.25
        assert now < 10
    assert now <= 2.5
    assert scheduler.stats().blocks_held == 0


def test_an_answer_that_only_waits_for_its_batch_leaves_whole() -> None:
    scheduler = scheduler_of("static", seqs=2)
    (short,) = ask(scheduler, "a", 0.0, tokens=1, timeout=1.0)
    (long,) = ask(scheduler, "b", 0.0, tokens=20)
    step(scheduler, 0.0)
    assert short.finish_reason is FinishReason.LENGTH and scheduler.sequences("a")
    assert step(scheduler, 1.0) == ["a"]
    assert short.finish_reason is FinishReason.LENGTH and long.finish_reason is None


def test_looking_for_the_late_costs_nothing_however_many_wait() -> None:
    def seconds(count: int) -> float:
        scheduler = scheduler_of()
        for number in range(count):
            ask(scheduler, f"r{number}", 0.0, timeout=1e6 + number, queue_timeout=1e5 + number)
        step(scheduler, 0.0)
        best = 1.0
        for _ in range(50):
            begin = time.perf_counter()
            scheduler._expire_late(1.0)
            best = min(best, time.perf_counter() - begin)
        return best

    assert seconds(4000) < 20 * seconds(40) + 1e-4


def test_limits_of_requests_that_ended_are_forgotten() -> None:
    scheduler = scheduler_of(seqs=8)
    for number in range(2000):
        ask(scheduler, f"r{number}", 0.0, tokens=1, timeout=1e6)
        scheduler.abort(f"r{number}", 0.0)
    assert len(scheduler.entrance.times) == 0 and len(scheduler.entrance.times._heap) < 100
