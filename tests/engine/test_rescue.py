"""A scheduler that fails on one request: that one ends with an error, all others as if nothing had been."""

from __future__ import annotations

import pytest

from paceline.core.disciplines import discipline as discipline_named
from paceline.core.quotas import Quota, Quotas
from paceline.core.request import Request, Sequence
from paceline.core.scheduler import Scheduler
from paceline.engine import messages
from paceline.engine.core_loop import EngineLoop

from .test_core_loop import Counting, add, is_clean, run_dry, tokens_of


@pytest.fixture
def executor() -> Counting:
    return Counting()


def make(executor: Counting, discipline: str = "paceline") -> EngineLoop:
    settings = {"num_blocks": 128, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 128}
    row = discipline_named(discipline)
    return EngineLoop(Scheduler(row.configure(**settings, max_model_len=128), row), executor)


def fail_on(monkeypatch: pytest.MonkeyPatch, cls: type, method: str, poisons: set[str]) -> None:
    """A method whose last argument of that kind is a poisoned request or sequence raises."""
    original = getattr(cls, method)

    def failing(self: object, *arguments: object, **named: object) -> object:
        for argument in arguments:
            request = argument.request if isinstance(argument, Sequence) else argument
            if isinstance(request, Request) and request.id in poisons:
                raise ZeroDivisionError("a defect")
        return original(self, *arguments, **named)

    monkeypatch.setattr(cls, method, failing)


def errors_of(outputs: list[messages.SequenceOutput]) -> dict[int, str]:
    return {o.number: o.error for o in outputs if o.finish_reason == "error" and o.error is not None}


def test_a_request_that_cannot_be_taken_in_is_refused_and_leaves_nothing(
    executor: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make(executor)
    original = type(loop.scheduler.waiting).add

    def failing(self: object, sequence: Sequence) -> None:
        original(self, sequence)
        if sequence.request.id == "r2":
            raise ZeroDivisionError("a defect")

    monkeypatch.setattr(type(loop.scheduler.waiting), "add", failing)
    loop.handle(add(1))
    first = loop.step()
    answers = loop.handle(add(2, n=3))
    refused = answers[-1]
    assert isinstance(refused, messages.Refused)
    assert (refused.number, refused.status, refused.code) == (2, 500, "engine_error")
    loop.handle(add(3))
    outputs = first.outputs + run_dry(loop)  # type: ignore[union-attr]
    assert tokens_of(outputs, 1) == tokens_of(outputs, 3) == [5, 6, 7] and tokens_of(outputs, 2) == []
    assert is_clean(loop)


def test_a_request_on_which_scheduling_fails_is_given_up_alone(
    executor: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make(executor)
    fail_on(monkeypatch, type(loop.scheduler.discipline.admission), "refuse", {"r2"})
    loop.handle(add(1, max_tokens=6, n=2))
    loop.step()
    loop.step()
    loop.handle(add(2))
    loop.handle(add(3, max_tokens=4))
    outputs = run_dry(loop)
    assert list(errors_of(outputs)) == [2] and "ZeroDivisionError" in errors_of(outputs)[2]
    assert tokens_of(outputs, 1)[-1] == tokens_of(outputs, 1, 1)[-1] == 10
    assert tokens_of(outputs, 3) == [5, 6, 7, 8]
    assert is_clean(loop)
    assert loop.scheduler.totals.finished == 3 and loop.scheduler.totals.failed == 1


def test_a_failure_that_passes_costs_nobody_a_token(executor: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make(executor, "vllm")
    loop.handle(messages.SetQuotas(Quotas(default=Quota(concurrency=8))))
    for number, prompt in ((1, 5), (2, 40), (3, 9)):
        loop.handle(add(number, prompt=prompt, max_tokens=8))
    outputs = []
    for _ in range(3):
        outputs += loop.step().outputs  # type: ignore[union-attr]
    original = type(loop.scheduler.builder).run
    failures = [ZeroDivisionError("once")]

    def failing(self: object, *arguments: object, **named: object) -> object:
        if failures:
            raise failures.pop()
        return original(self, *arguments, **named)

    monkeypatch.setattr(type(loop.scheduler.builder), "run", failing)
    outputs += run_dry(loop)
    assert not errors_of(outputs)
    for number, prompt in ((1, 5), (2, 40), (3, 9)):
        assert tokens_of(outputs, number) == list(range(prompt, prompt + 8))
    assert is_clean(loop)
    assert loop.scheduler.entrance.gate is not None  # quotas hold under the new scheduler too


def test_failing_every_time_ends_everybody_and_not_the_loop(
    executor: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make(executor)

    def failing(self: object, now: float) -> None:
        raise ZeroDivisionError("always")

    monkeypatch.setattr(type(loop.scheduler.builder), "build", failing)
    for number in range(1, 5):
        loop.handle(add(number))
    outputs = run_dry(loop)
    assert sorted(errors_of(outputs)) == [1, 2, 3, 4]
    assert is_clean(loop)


def test_a_batch_that_ends_together_keeps_the_tokens_of_those_that_were_done(
    executor: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make(executor, "static")
    loop.handle(add(1, max_tokens=1))
    loop.handle(add(2, max_tokens=5))
    outputs = loop.step().outputs  # type: ignore[union-attr]
    original = type(loop.scheduler.builder).run
    failures = [ZeroDivisionError("once")]

    def failing(self: object, *arguments: object, **named: object) -> object:
        if failures:
            raise failures.pop()
        return original(self, *arguments, **named)

    monkeypatch.setattr(type(loop.scheduler.builder), "run", failing)
    outputs += run_dry(loop)
    assert not errors_of(outputs)
    assert tokens_of(outputs, 1) == [5] and tokens_of(outputs, 2) == [5, 6, 7, 8, 9]
    assert is_clean(loop)


# -- accounts and reasons ----------------------------------------------------------------------------------------------


def test_accounts_come_with_every_end_whatever_ended_it(executor: Counting) -> None:
    loop = make(executor)
    for number in (1, 2, 3):
        loop.handle(add(number, max_tokens=2 if number == 1 else 50))
    loop.step()
    (left,) = loop.handle(messages.Abort(2))
    (stopped,) = loop.handle(messages.Finish(3, 0))
    assert [(a.number, a.report["finish_reason"]) for a in (*left.accounts, *stopped.accounts)] == [  # type: ignore[union-attr]
        (2, "abort"),
        (3, "stop"),
    ]
    step = loop.step()
    assert step is not None
    (account,) = step.accounts
    assert (account.number, account.report["generated_tokens"], account.report["steps"]) == (1, 2, 2)
    assert loop.handle(messages.Abort(1)) == []


def test_live_requests_are_explained(executor: Counting) -> None:
    loop = make(executor)
    for number in range(1, 7):
        loop.handle(add(number, max_tokens=20, n=2 if number == 6 else 1))
    loop.step()
    loop.step()
    (answer,) = loop.handle(messages.Explain(7))
    assert isinstance(answer, messages.Explained) and answer.ticket == 7
    assert answer.requests[1][0]["state"] == "running" and "why" not in answer.requests[1][0]
    assert answer.requests[1][0]["generated_tokens"] == 2
    assert answer.requests[5][0]["why"] == "slots: all 4 are taken"
    assert answer.requests[6][0]["why"].startswith("behind r5")
    assert answer.requests[6][1]["why"].startswith("fork: r6")
    (some,) = loop.handle(messages.Explain(8, [2, 99]))
    assert list(some.requests) == [2]  # type: ignore[union-attr]
    assert messages.decode_from_engine(messages.encode(answer)) == answer
