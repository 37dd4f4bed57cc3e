"""The loop between messages and steps: a real scheduler, and an executor whose answers and failures are scripted."""

from __future__ import annotations

import itertools
import queue
import threading

import numpy as np
import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.params import SamplingParams
from paceline.core.plan import StepPlan, StepResult, TokenLogprobs
from paceline.core.quotas import Quota, Quotas, Rate
from paceline.core.scheduler import Scheduler
from paceline.engine import messages
from paceline.engine.core_loop import IDLE_WAIT, EngineLoop

EOS = 99


class Counting:
    """Samples the position of the new token; fails when told to."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        if self.failures:
            raise self.failures.pop(0)
        rows = plan.rows[plan.samples]
        ends = (plan.starts + plan.counts)[plan.samples]
        prompts = {}
        for row, start, count in zip(plan.rows.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True):
            stop = min(start + count, int(plan.prompt_lengths[row]) - 1)
            prompts[row] = [(p + 1, TokenLogprobs(p + 1, -1.0, 1, [], [])) for p in range(start, stop)]
        entries = [TokenLogprobs(int(end), -0.5, 1, [], []) for end in ends]
        return StepResult(ends.astype(np.int32), 0.0, entries if len(rows) else None, prompts)


@pytest.fixture
def executor() -> Counting:
    return Counting()


@pytest.fixture
def loop(executor: Counting) -> EngineLoop:
    config = SchedulerConfig(
        num_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=128, eos_token_ids=(EOS,)
    )
    return EngineLoop(Scheduler(config), executor)


def add(number: int, prompt: int = 5, **params) -> messages.Add:
    return messages.Add(
        number=number,
        request_id=f"r{number}",
        prompt=messages.as_bytes(range(prompt)),
        params=SamplingParams(**{"max_tokens": 3, **params}),
        seed=number,
    )


def run_dry(loop: EngineLoop) -> list[messages.SequenceOutput]:
    outputs = []
    while loop.scheduler.has_work():
        step = loop.step()
        outputs += step.outputs if step is not None else []
    return outputs


def tokens_of(outputs: list[messages.SequenceOutput], number: int, index: int = 0) -> list[int]:
    return [token for o in outputs if (o.number, o.index) == (number, index) for token in o.tokens]


def is_clean(loop: EngineLoop) -> bool:
    state = (loop._requests, loop._numbers, loop._open, loop._sequences, loop._unreported, loop._prompt_logprobs)
    assert not loop._last
    loop.scheduler.check()
    return not any(state)


def test_every_token_comes_out_once_with_the_end_on_the_last(loop: EngineLoop) -> None:
    for number, n in ((1, 1), (2, 3)):
        assert loop.handle(add(number, n=n)) == []
    outputs = run_dry(loop)
    for number, index in ((1, 0), (2, 0), (2, 1), (2, 2)):
        assert tokens_of(outputs, number, index) == [5, 6, 7]
    ends = [(o.number, o.index, o.finish_reason) for o in outputs if o.finish_reason is not None]
    assert sorted(ends) == [(1, 0, "length"), (2, 0, "length"), (2, 1, "length"), (2, 2, "length")]
    assert is_clean(loop)


def test_the_end_token_and_own_stop_tokens_end_with_their_reason(loop: EngineLoop) -> None:
    loop.handle(add(1, prompt=98, max_tokens=20))
    loop.handle(add(2, prompt=5, max_tokens=20, stop_token_ids=(7,)))
    outputs = run_dry(loop)
    assert (tokens_of(outputs, 1), tokens_of(outputs, 2)) == ([98, EOS], [5, 6, 7])
    ends = {o.number: (o.finish_reason, o.stop_token) for o in outputs if o.finish_reason}
    assert ends == {1: ("stop", None), 2: ("stop", 7)}


def test_prompt_logprobs_of_chunked_prompts_come_whole_with_the_first_token(loop: EngineLoop) -> None:
    loop.handle(add(1, prompt=30, prompt_logprobs=0, logprobs=0))
    outputs = run_dry(loop)
    first = outputs[0]
    assert first.prompt_logprobs is not None and first.prompt_logprobs[0] is None
    assert [entry.token for entry in first.prompt_logprobs[1:] if entry] == list(range(1, 30))
    assert [entry.token for o in outputs for entry in o.logprobs or []] == [30, 31, 32]
    assert all(o.prompt_logprobs is None for o in outputs[1:])
    assert is_clean(loop)


def test_cached_tokens_are_told_with_the_first_token(loop: EngineLoop) -> None:
    loop.handle(add(1, prompt=17))
    run_dry(loop)
    loop.handle(add(2, prompt=17))
    cached = [o.cached_tokens for o in run_dry(loop)]
    assert cached[0] == 16 and cached[1:] == [None, None]


def test_aborts_and_finishes_leave_nothing_behind(loop: EngineLoop) -> None:
    for number in (1, 2, 3):
        loop.handle(add(number, n=2, max_tokens=50, prompt_logprobs=0))
    for _ in range(6):
        loop.step()
    loop.handle(messages.Abort(1))
    loop.handle(messages.Abort(1))
    loop.handle(messages.Finish(2, 1))
    loop.handle(messages.Finish(2, 1))
    outputs = run_dry(loop)
    assert not any(o.number == 1 or (o.number, o.index) == (2, 1) for o in outputs)
    assert len(tokens_of(outputs, 3)) > 0
    assert is_clean(loop)


def test_an_id_may_be_used_again_as_soon_as_it_was_aborted(loop: EngineLoop) -> None:
    first, second = add(1), add(2)
    second.request_id = first.request_id
    loop.handle(first)
    loop.step()
    assert isinstance(loop.handle(second)[0], messages.Refused)
    loop.handle(messages.Abort(1))
    assert loop.handle(second) == []
    assert {o.number for o in run_dry(loop)} == {2}


def test_what_can_never_fit_is_refused_with_the_numbers(loop: EngineLoop) -> None:
    (answer,) = loop.handle(add(1, prompt=500))
    assert isinstance(answer, messages.Refused)
    assert answer.status == 400 and "500" in answer.message and answer.code == "context_length_exceeded"
    assert is_clean(loop)


def test_a_request_taken_over_goes_on_with_its_next_token(loop: EngineLoop) -> None:
    message = add(1, n=3, max_tokens=6)
    message.resumed = {0: messages.as_bytes([5, 6]), 2: b""}
    loop.handle(message)
    outputs = run_dry(loop)
    assert tokens_of(outputs, 1, 0) == [7, 8, 9, 10]
    assert tokens_of(outputs, 1, 1) == []
    assert tokens_of(outputs, 1, 2) == [5, 6, 7, 8, 9, 10]
    assert is_clean(loop)


def test_one_failed_step_is_repeated_and_changes_nothing(loop: EngineLoop, executor: Counting) -> None:
    loop.handle(add(1, max_tokens=5))
    loop.step()
    executor.failures = [RuntimeError("hiccup")]
    assert tokens_of(run_dry(loop), 1) == [6, 7, 8, 9]
    assert is_clean(loop)


def test_requests_whose_steps_keep_failing_end_with_an_error_and_others_are_served(
    loop: EngineLoop, executor: Counting
) -> None:
    loop.handle(add(1, n=2))
    executor.failures = [RuntimeError("out of order")] * 2
    outputs = run_dry(loop)
    assert {(o.index, o.finish_reason) for o in outputs} == {(0, "error"), (1, "error")}
    assert "RuntimeError: out of order" in (outputs[0].error or "")
    assert is_clean(loop)
    loop.handle(add(2))
    assert tokens_of(run_dry(loop), 2) == [5, 6, 7]


def test_the_loop_sleeps_while_there_is_nothing_to_do_and_ends_when_told(loop: EngineLoop, executor: Counting) -> None:
    inbox: queue.Queue[messages.ToEngine] = queue.Queue()
    outbox: queue.Queue[messages.FromEngine] = queue.Queue()
    waits: list[float | None] = []

    def receive(timeout: float | None) -> list[messages.ToEngine]:
        waits.append(timeout)
        try:
            return [inbox.get(block=timeout != 0.0, timeout=timeout or None)]
        except queue.Empty:
            return []

    thread = threading.Thread(target=loop.run, args=(receive, outbox.put))
    thread.start()
    inbox.put(add(1))
    got = []
    while not got or got[-1].outputs[-1].finish_reason is None:
        got.append(outbox.get(timeout=10))
    inbox.put(messages.AskStats(7))
    stats = outbox.get(timeout=10)
    assert isinstance(stats, messages.Stats) and stats.ticket == 7
    assert (stats.stats["running"], stats.stats["waiting"], stats.stats["finished"]) == (0, 0, 1)
    inbox.put(messages.Shutdown())
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert executor.steps == 3
    assert waits.count(None) == len(waits) - 3  # blocked for ever but between the three steps


@pytest.mark.parametrize(
    "message",
    [
        messages.Add(1, "r", b"\0\0\0\0", SamplingParams(seed=-1, logit_bias={5: 1.5}, stop=("a",)), 2**64 - 1),
        messages.Add(2, "é", b"", SamplingParams(), -(2**63), resumed={0: b"", 3: b"\1\0\0\0"}),
        messages.Abort(3),
        messages.Finish(3, 1),
        messages.AskStats(4),
        messages.Shutdown(),
    ],
)
def test_messages_to_the_engine_survive_the_wire(message: messages.ToEngine) -> None:
    assert messages.decode_to_engine(messages.encode(message)) == message


def test_outputs_survive_the_wire() -> None:
    entry = TokenLogprobs(5, -0.25, 1, [5, 6], [-0.25, -1.5])
    message = messages.StepOutput(
        [
            messages.SequenceOutput(1, 2, [3, 4], "stop", 4, [entry, entry], 7, [None, entry]),
            messages.SequenceOutput(2, 0, [1]),
        ]
    )
    decoded = messages.decode_from_engine(messages.encode(message))
    assert decoded == message
    assert isinstance(decoded.outputs[0].logprobs[0], TokenLogprobs)


def batched(executor: Counting, discipline: str, **knobs: object) -> EngineLoop:
    row = discipline_named(discipline).with_knobs(knobs)
    config = row.configure(num_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=128, max_model_len=128)
    return EngineLoop(Scheduler(config, row), executor, clock=iter(itertools.count()).__next__)


def test_a_batch_that_ends_together_gives_each_last_token_with_its_end(executor: Counting) -> None:
    loop = batched(executor, "static")
    loop.handle(add(1, max_tokens=5))
    loop.handle(add(2, max_tokens=2))
    *before, last = [step.outputs for step in iter(loop.step, None)]
    assert not any(o.finish_reason for outputs in before for o in outputs)
    assert [(o.number, o.tokens, o.finish_reason) for o in last] == [(1, [9], "length"), (2, [6], "length")]
    assert tokens_of([o for outputs in before for o in outputs], 2) == [5]
    assert is_clean(loop)


def test_who_is_done_ends_although_the_step_of_the_others_fails_and_they_leave(executor: Counting) -> None:
    loop = batched(executor, "static")
    loop.handle(add(1, max_tokens=9))
    loop.handle(add(2, max_tokens=1))
    loop.step()
    loop.handle(messages.Abort(1))
    (output,) = run_dry(loop)
    assert (output.number, output.tokens, output.finish_reason) == (2, [5], "length")
    assert is_clean(loop)


def test_a_request_that_waited_too_long_is_answered_with_the_reason(executor: Counting) -> None:
    loop = batched(executor, "dynamic", default_timeout_microseconds=1)
    loop.handle(add(1))
    (output,) = run_dry(loop)
    assert (output.number, output.finish_reason) == (1, "expired")
    assert output.error is not None and output.error.startswith("timeout: waited")
    assert is_clean(loop)


def test_an_idle_loop_waits_no_longer_than_the_batch_it_waits_for(executor: Counting) -> None:
    row = discipline_named("dynamic").with_knobs({"max_queue_delay_microseconds": 5000})
    now = [0.0]
    loop = EngineLoop(Scheduler(row.configure(num_blocks=64), row), executor, clock=lambda: now[0])
    loop.handle(add(1))
    assert loop.step() is None and loop.idle_wait() == pytest.approx(0.005)
    now[0] = 0.004
    assert loop.step() is None and loop.idle_wait() == pytest.approx(0.001)
    now[0] = 0.005
    assert loop.step() is not None


def test_quotas_hold_from_the_message_on(loop: EngineLoop) -> None:
    loop.handle(messages.SetQuotas(Quotas(Quota(requests=Rate(0.001, 1)))))
    loop.handle(add(1, max_tokens=1))
    loop.handle(add(2, max_tokens=1))
    step = loop.step()
    assert step is not None and [output.number for output in step.outputs] == [1]
    assert loop.step() is None and loop.idle_wait() == IDLE_WAIT
    assert loop.scheduler.why()["r2"].startswith("quota until")
    decoded = messages.decode_to_engine(messages.encode(messages.SetQuotas(Quotas(tenants={"a": Quota(borrow=True)}))))
    assert decoded == messages.SetQuotas(Quotas(tenants={"a": Quota(borrow=True)}))
    loop.handle(messages.SetQuotas(Quotas()))
    step = loop.step()
    assert step is not None and [output.number for output in step.outputs] == [2]


def test_who_is_too_late_is_reported_with_how_long_it_had_waited(executor: Counting) -> None:
    now = 0.0
    config = SchedulerConfig(num_blocks=64, block_size=4, max_num_seqs=1, max_num_batched_tokens=8, max_model_len=128)
    loop = EngineLoop(Scheduler(config), executor, clock=lambda: now)
    for number, limits in ((1, {"timeout": 2.0}), (2, {"queue_timeout": 1.0})):
        message = add(number, max_tokens=50)
        for name, seconds in limits.items():
            setattr(message, name, seconds)
        assert loop.handle(message) == []
    now = 0.5
    step = loop.step()
    assert step is not None and step.outputs[0].queue_seconds == 0.5
    now = 1.0
    step = loop.step()
    assert step is not None
    expired = {output.number: output for output in step.outputs if output.finish_reason == "expired"}
    assert expired.keys() == {2} and expired[2].queue_seconds is None
    assert expired[2].error == "queue_timeout: it may wait 1 s and has waited 1.000 s"
    now = 2.0
    step = loop.step()
    assert step is not None and [(o.number, o.finish_reason, o.queue_seconds) for o in step.outputs] == [
        (1, "expired", 0.5)
    ]
    assert is_clean(loop)


def test_a_refusal_says_when_to_come_back(executor: Counting) -> None:
    config = SchedulerConfig(num_blocks=64, block_size=4, max_num_seqs=1, max_num_batched_tokens=8, max_model_len=128)
    row = discipline_named("paceline").with_knobs({"max_queued_requests": 1})
    loop = EngineLoop(Scheduler(config, row), executor)
    assert loop.handle(add(1)) == []
    (refused,) = loop.handle(add(2))
    assert isinstance(refused, messages.Refused)
    assert (refused.status, refused.code, refused.retry_after) == (429, "queue_full", 1.0)
