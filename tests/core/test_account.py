"""Where a sequence's time went, and why it waits."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from paceline.core.account import PHASES, report
from paceline.core.config import SchedulerConfig
from paceline.core.discipline import Discipline
from paceline.core.disciplines import DISCIPLINES
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.params import SamplingParams
from paceline.core.plan import StepResult
from paceline.core.replay import replay
from paceline.core.request import FinishReason, Request, Sequence
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError, RequestError


def scheduler(discipline: str | Discipline = "paceline", **settings: int) -> Scheduler:
    defaults = {"num_blocks": 16, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 64}
    return Scheduler(SchedulerConfig(**{**defaults, **settings}), discipline)  # type: ignore[arg-type]


def add(it: Scheduler, name: str, prompt: int = 4, output: int = 3, now: float = 0.0, **fields: object) -> Sequence:
    tokens = np.arange(prompt, dtype=np.int32) + 1000 * (it._submitted + 1)
    params = SamplingParams(max_tokens=output, ignore_eos=True)
    return it.add(Request(name, tokens, params, arrival=now, **fields), now)[0]  # type: ignore[arg-type]


def step(it: Scheduler, now: float, later: float | None = None) -> None:
    """Schedule at `now`, complete at `later`."""
    plan = it.schedule(now)
    if plan is not None:
        samples = int(plan.samples.sum())
        it.complete(StepResult(np.full(samples, 7, np.int32)), now if later is None else later)


def test_the_phases_of_a_life_add_up_to_all_of_it() -> None:
    it = scheduler()
    sequence = add(it, "a", prompt=12, output=3, now=10.0)
    step(it, 11.0, 12.0)  # 8 of 12 tokens of the prompt
    step(it, 12.0, 14.0)  # the rest: the first token at 14
    step(it, 15.0, 16.0)
    step(it, 16.0, 19.0)  # the third and last
    lines = report(sequence, it.totals.steps)
    assert {phase: lines[f"{phase}_seconds"] for phase in PHASES} == {
        "queue": 1.0, "prefill": 3.0, "decode": 5.0, "preempted": 0.0,
    }  # fmt: skip
    assert lines["total_seconds"] == 9.0
    assert (lines["steps"], lines["prompt_tokens"], lines["generated_tokens"]) == (4, 12, 3)
    assert (lines["state"], lines["finish_reason"]) == ("finished", "length")


def test_a_preemption_is_counted_apart_with_what_had_to_be_computed_again() -> None:
    it = scheduler("vllm", num_blocks=8, max_num_batched_tokens=32)
    old, new = add(it, "old", prompt=12, output=12), add(it, "new", prompt=12, output=12)
    now = 0.0
    while it.has_work():
        step(it, now, now + 1.0)
        now += 1.0
    first, second = (report(sequence, it.totals.steps) for sequence in (old, new))
    assert first["preempted_seconds"] == 0.0 and first["preemptions"] == 0
    assert second["preempted_seconds"] > 0.0 and second["preemptions"] == new.preemptions > 0
    assert second["steps"] + second["preempted_seconds"] == second["total_seconds"] == now
    assert second["recomputed_tokens"] == it.totals.recomputed_tokens


def test_a_live_sequence_is_accounted_up_to_now() -> None:
    it = scheduler()
    waiting = add(it, "a", now=1.0)
    assert report(waiting, it.totals.steps, now=4.0)["queue_seconds"] == 3.0
    step(it, 4.0, 5.0)
    lines = report(waiting, it.totals.steps, now=7.5)
    assert (lines["queue_seconds"], lines["prefill_seconds"], lines["decode_seconds"]) == (3.0, 1.0, 2.5)
    assert lines["steps"] == 1 and lines["state"] == "running"


def test_who_is_taken_over_with_tokens_decodes_from_the_start() -> None:
    it = scheduler()
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    request = Request("a", np.arange(4, dtype=np.int32), params, resumed={0: np.array([9], np.int32)})
    (sequence,) = it.add(request, 0.0)
    step(it, 1.0, 3.0)
    assert report(sequence, it.totals.steps, now=3.0)["decode_seconds"] == 2.0


def test_totals_tell_how_sequences_ended() -> None:
    it = scheduler(num_blocks=8)
    add(it, "done", output=1)
    add(it, "left")
    add(it, "late")
    add(it, "broken")
    it.abort("left", 0.0)
    it.expire(it.sequences("late")[0], "too late")
    it.finish("broken", FinishReason.ERROR, 0.0)
    step(it, 0.0)
    for wrong in (0, 64, 1000):
        with pytest.raises(RequestError):
            add(it, "wrong", prompt=wrong)
    with pytest.raises(RequestError, match="KV blocks"):
        add(it, "too large", prompt=30, output=30)
    totals = it.totals
    assert (totals.finished, totals.aborted, totals.expired, totals.failed, totals.refused) == (1, 1, 1, 1, 3 + 1)


# -- why it waits ------------------------------------------------------------------------------------------------------


def test_everyone_tried_has_a_reason_of_their_own() -> None:
    it = scheduler(num_blocks=12, max_num_batched_tokens=64)
    add(it, "runs", prompt=16, output=16)
    step(it, 0.0)
    for name, prompt in (("large", 24), ("larger", 28), ("small", 4)):
        add(it, name, prompt=prompt, output=2)
    step(it, 1.0)
    why = it.why()
    assert set(why) == {"large", "larger"}  # the small one passed both
    assert why["large"].startswith("KV: needs 6 blocks") and why["larger"].startswith("KV: needs 7 blocks")


def test_a_full_step_says_so_to_the_first_and_the_others_are_behind_it() -> None:
    it = scheduler(max_num_seqs=1)
    for name in "abc":
        add(it, name, output=8)
    step(it, 0.0)
    step(it, 1.0)
    assert it.why() == {"b": "slots: all 1 are taken", "c": "behind b (slots: all 1 are taken)"}
    add(it, "d")
    assert it.why()["d"].startswith("new")


def test_after_a_failed_step_they_say_so() -> None:
    it = scheduler()
    add(it, "a")
    assert it.schedule(0.0) is not None
    it.fail(1.0)
    assert it.why()["a"].startswith("failed: ")
    step(it, 2.0)
    assert it.why() == {}


def test_an_idle_or_full_step_looks_at_nobody_behind_the_first() -> None:
    looked = 0

    class Counted(type(discipline_named("paceline").policy.queue())):  # type: ignore[misc]
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looked
            for sequence in super().__iter__():
                looked += 1
                yield sequence

    it = scheduler(max_num_seqs=2, max_num_batched_tokens=64)
    it.waiting.__class__ = Counted
    for index in range(50):
        add(it, f"r{index}", output=30)
    for now in range(10):
        step(it, float(now))
    assert looked == 0
    assert it.num_waiting == 48


@pytest.mark.parametrize("name", list(DISCIPLINES))
def test_under_every_row_accounts_add_up(name: str) -> None:
    requests = [
        {"id": f"r{index}", "prompt_len": 3 + 5 * (index % 4), "output_len": 2 + index % 5, "arrival_step": index // 2}
        for index in range(12)
    ]
    config = {"block_size": 4, "num_blocks": 40, "max_num_seqs": 3, "max_num_batched_tokens": 64, "max_model_len": 64}
    lines = list(replay({"config": config, "requests": requests}, name, requests=True))
    summary = lines[-1]["summary"]
    assert len(summary["requests"]) == summary["finished"] == 12
    for lines_of in summary["requests"].values():
        total = sum(lines_of[f"{phase}_seconds"] for phase in PHASES)
        assert total == lines_of["total_seconds"] >= lines_of["steps"] - 1 >= 0


def test_replay_tells_of_requests_only_when_asked() -> None:
    script = {"config": {"max_model_len": 64}, "requests": [{"id": "a", "prompt_len": 5, "output_len": 2}]}
    assert "requests" not in list(replay(script))[-1]["summary"]
    command = [sys.executable, "-m", "paceline.core.replay", "--requests", "-"]
    out = subprocess.run(command, input=json.dumps(script), capture_output=True, text=True, timeout=60).stdout
    told = json.loads(out.splitlines()[-1])["summary"]["requests"]["a"]
    assert told["steps"] == 2 and told["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("config", "request_"),
    [
        ({"num_blocks": 10**10}, {}),
        ({"max_model_len": 10**10}, {}),
        ({"max_num_seqs": 60_000, "max_num_batched_tokens": 60_000, "max_model_len": 10**6}, {}),
        ({"block_size": 10**10}, {}),
        ({"max_num_batched_tokens": 10**10}, {}),
        ({}, {"prompt_len": 10**10}),
        ({}, {"output_len": 10**10}),
        ({"step_time": float("inf")}, {}),
    ],
)
def test_absurd_sizes_in_a_script_are_refused_with_the_range(config: dict, request_: dict) -> None:
    script = {"config": config, "requests": [{"id": "a", "prompt_len": 4, "output_len": 2, **request_}]}
    with pytest.raises(ConfigError):
        list(replay(script))
