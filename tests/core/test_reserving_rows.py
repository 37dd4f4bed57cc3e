"""Rows that promise whole lives, batches that stay closed, and requests whose time runs out."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from paceline.core.disciplines import DISCIPLINES
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.evictions import Nobody
from paceline.core.params import SamplingParams
from paceline.core.plan import StepPlan, StepResult
from paceline.core.replay import replay
from paceline.core.request import FinishReason, Request, Sequence, SequenceState
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError, RequestError
from tests.core.scripts import random_script
from tests.core.world import World

CLOSED = ("static", "dynamic", "trtllm-static")
OURS = ("static", "dynamic", "orca", "trtllm-no-evict", "trtllm-max-utilization", "trtllm-static", "tgi")
RESERVING = [name for name in OURS if isinstance(DISCIPLINES[name].eviction, Nobody)]
SMALL: dict[str, Any] = {
    "num_blocks": 32, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 32,
}  # fmt: skip


def scheduler_of(name: str, knobs: dict[str, Any] | None = None, **settings: Any) -> Scheduler:
    row = discipline_named(name).with_knobs(knobs or {})
    return Scheduler(row.configure(**{**SMALL, **settings}), row)


def request(name: str, prompt: int = 4, tokens: int = 3, **fields: Any) -> Request:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
    return Request(id=name, prompt=np.arange(prompt, dtype=np.int32), params=params, **fields)


def add(scheduler: Scheduler, name: str, now: float = 0.0, **fields: Any) -> Sequence:
    return scheduler.add(request(name, **fields), now)[0]


def run(scheduler: Scheduler, plan: StepPlan | None, now: float = 0.0) -> list[str]:
    assert plan is not None
    events = scheduler.complete(StepResult(np.zeros(int(plan.samples.sum()), np.int32)), now)
    scheduler.check()
    return [sequence.id for sequence in events.finished]


def step(scheduler: Scheduler, now: float = 0.0) -> list[str]:
    """Who finished in one step."""
    return run(scheduler, scheduler.schedule(now), now)


def scheduled(scheduler: Scheduler, plan: StepPlan | None) -> dict[str, int]:
    if plan is None:
        return {}
    names = [scheduler.batch.occupant[row].id for row in plan.rows.tolist()]
    return dict(zip(names, plan.counts.tolist(), strict=True))


# -- promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_first_tokens_come_in_order_of_arrival(name: str) -> None:
    """Without chunked prefill, which lets a short rest end before a long one."""
    tested = 0
    for seed in range(100):
        script = random_script(Random(8000 + seed), name, "levels" if name == "dynamic" else "fcfs")
        if script.fails or script.config.long_prefill_token_threshold:
            continue
        config = replace(
            script.config,
            enable_chunked_prefill=False,
            max_num_batched_tokens=max(script.config.max_num_batched_tokens, script.config.max_model_len),
        )
        world = replace(script, config=config).play()
        firsts = [
            sequence.first_token
            for sequence in sorted(world.ended.values(), key=lambda sequence: sequence.number)
            if sequence.first_token is not None and sequence.request.resumed is None
        ]
        assert firsts == sorted(firsts), f"seed {seed}"
        tested += len(firsts)
    assert tested > 100


def test_a_lone_sequence_may_fill_the_pool_to_its_last_token() -> None:
    for name in RESERVING:
        scheduler = scheduler_of(name, num_blocks=4, max_model_len=32)
        scheduler.add(Request(id="a", prompt=np.arange(3, dtype=np.int32), params=SamplingParams(max_tokens=None)), 0.0)
        while scheduler.has_work():
            step(scheduler)
        assert scheduler.totals.generation_tokens == 4 * 4 + 1 - 3, name
        with pytest.raises(RequestError, match="KV blocks"):
            add(scheduler, "b", prompt=4, tokens=14)


def test_a_hit_is_held_already_and_not_promised_again() -> None:
    scheduler = scheduler_of("trtllm-no-evict", num_blocks=8)
    add(scheduler, "a", prompt=17, tokens=3)
    step(scheduler)
    assert scheduler.kv.available == 8 - 5
    add(scheduler, "b", prompt=17, tokens=7)  # 6 blocks in all, 4 of them cached, where 3 are free
    plan = scheduler.schedule(0.0)
    assert scheduled(scheduler, plan) == {"b": 1, "a": 1}
    assert run(scheduler, plan) == []


# -- closed batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLOSED)
def test_nobody_joins_a_batch_that_runs(name: str) -> None:
    scheduler = scheduler_of(name)
    add(scheduler, "a", tokens=3)
    step(scheduler)
    add(scheduler, "b")
    for _ in range(2):
        plan = scheduler.schedule(0.0)
        assert scheduled(scheduler, plan) == {"a": 1}
        assert scheduler.why() == {"b": "batch: closed until it has ended; members: 1"}
        run(scheduler, plan)
    assert scheduled(scheduler, scheduler.schedule(0.0)) == {"b": 4}


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_who_is_done_keeps_row_and_blocks_until_the_batch_ends(name: str) -> None:
    scheduler = scheduler_of(name)
    short, long = add(scheduler, "short", tokens=1), add(scheduler, "long", tokens=3)
    assert step(scheduler) == []
    assert short.state is SequenceState.RUNNING and short.finish_reason is FinishReason.LENGTH
    assert [sequence.id for sequence in scheduler.running()] == ["short", "long"]
    assert step(scheduler) == [] and step(scheduler) == ["short", "long"]
    assert short.state is long.state is SequenceState.FINISHED
    assert scheduler.take_ended() == [] and not scheduler.has_work()
    assert scheduler.kv.available == SMALL["num_blocks"]


def test_who_is_done_ends_when_the_last_of_the_others_leaves() -> None:
    scheduler = scheduler_of("static")
    short = add(scheduler, "short", tokens=1)
    add(scheduler, "long", tokens=9)
    step(scheduler)
    scheduler.abort("long", 0.0)
    add(scheduler, "next")
    plan = scheduler.schedule(0.0)
    assert scheduler.take_ended() == [short] and short.finish_reason is FinishReason.LENGTH
    assert scheduled(scheduler, plan) == {"next": 4}


def test_who_is_done_does_not_have_to_wait_for_a_step_that_failed() -> None:
    scheduler = scheduler_of("static")
    short = add(scheduler, "short", tokens=1)
    add(scheduler, "long", tokens=3)
    step(scheduler)
    scheduler.schedule(0.0)
    scheduler.fail(0.0)
    plan = scheduler.schedule(0.0)
    assert scheduler.take_ended() == [short]
    assert scheduled(scheduler, plan) == {"long": 5}


# -- timed batches, levels, time that runs out ------------------------------------------------------------------------


def test_a_batch_that_waits_says_until_when() -> None:
    scheduler = scheduler_of("dynamic", {"preferred_batch_size": (2,), "max_queue_delay_microseconds": 100})
    add(scheduler, "a", now=1.0)
    assert scheduler.schedule(1.0) is None and scheduler.step is not None
    assert scheduler.step.wake == pytest.approx(1.0001)
    assert scheduler.why() == {"a": "batch: 1 wait for 2 to run together, until 1.000100 s at most"}
    assert scheduled(scheduler, scheduler.schedule(1.0001)) == {"a": 4}


def test_a_waiting_batch_wakes_for_a_timeout_too() -> None:
    knobs = {"max_queue_delay_microseconds": 100, "default_timeout_microseconds": 30}
    scheduler = scheduler_of("dynamic", knobs)
    late = add(scheduler, "a", now=0.0)
    assert scheduler.schedule(0.0) is None and scheduler.step is not None
    assert scheduler.step.wake == pytest.approx(30e-6)
    assert scheduler.schedule(30e-6) is None
    assert scheduler.take_ended() == [late] and late.finish_reason is FinishReason.EXPIRED
    assert late.finish_detail == "timeout: waited 0.000030 s in the queue"
    assert scheduler.take_ended() == [] and not scheduler.has_work()


@pytest.mark.parametrize("running", [False, True])
def test_any_live_sequence_may_be_expired_between_steps(running: bool) -> None:
    scheduler = scheduler_of("orca")
    sequence, other = add(scheduler, "a"), add(scheduler, "b")
    if running:
        step(scheduler)
    scheduler.expire(sequence, "deadline: 3 s are over")
    scheduler.check()
    assert scheduler.take_ended() == [sequence] and sequence.finish_reason is FinishReason.EXPIRED
    while scheduler.has_work():
        step(scheduler)
    assert other.finish_reason is FinishReason.LENGTH
    assert scheduler.kv.available == SMALL["num_blocks"]


def test_a_sequence_expired_while_its_step_runs_gets_no_token() -> None:
    scheduler = scheduler_of("orca")
    sequence = add(scheduler, "a")
    add(scheduler, "b")
    plan = scheduler.schedule(0.0)
    scheduler.expire(sequence, "deadline")
    assert plan is not None
    events = scheduler.complete(StepResult(np.zeros(2, np.int32)), 0.0)
    assert [known.id for known in events.sequences] == ["b"]
    scheduler.check()


def test_priorities_are_levels_only_where_levels_are_configured() -> None:
    plain = scheduler_of("dynamic")
    add(plain, "low", priority=9)
    add(plain, "high", priority=1)
    assert [sequence.id for sequence in plain.waiting] == ["low", "high"]
    levels = scheduler_of("dynamic", {"priority_levels": 3, "default_priority_level": 2})
    for name, priority in (("third", 3), ("odd", 7), ("none", 0), ("first", 1)):
        add(levels, name, priority=priority)
    assert [sequence.id for sequence in levels.waiting] == ["first", "odd", "none", "third"]


def test_a_full_level_refuses_and_others_do_not() -> None:
    knobs = {"priority_levels": 2, "default_priority_level": 1, "levels": {"2": {"max_queue_size": 1}}}
    scheduler = scheduler_of("dynamic", knobs)
    add(scheduler, "a", priority=2)
    with pytest.raises(RequestError, match="level 2 is full: 1 wait, 1 may") as caught:
        add(scheduler, "b", priority=2)
    assert caught.value.status == 429
    add(scheduler, "c", priority=1)


def test_tgi_refuses_beyond_its_concurrent_requests() -> None:
    scheduler = scheduler_of("tgi", {"max_concurrent_requests": 2})
    add(scheduler, "a")
    add(scheduler, "b")
    with pytest.raises(RequestError, match="2 requests are inside") as caught:
        add(scheduler, "c")
    assert (caught.value.status, caught.value.code) == (429, "overloaded")
    scheduler.abort("a", 0.0)
    add(scheduler, "c")


# -- rhythm and order of a step ---------------------------------------------------------------------------------------


def test_tgi_decodes_once_between_steps_that_let_somebody_join() -> None:
    scheduler = scheduler_of("tgi", {"waiting_served_ratio": 0.0}, max_num_seqs=8)
    add(scheduler, "a", tokens=9)
    steps = []
    for number in range(6):
        plan = scheduler.schedule(0.0)
        steps.append(scheduled(scheduler, plan))
        add(scheduler, f"b{number}", tokens=9)
        run(scheduler, plan)
    assert [list(names) for names in steps] == [
        ["a"], ["b0"], ["a", "b0"], ["b1", "b2"], ["a", "b0", "b1", "b2"], ["b3", "b4"],
    ]  # fmt: skip


def test_contexts_come_before_generations_in_a_step() -> None:
    scheduler = scheduler_of(
        "trtllm-no-evict", enable_chunked_prefill=True, max_num_batched_tokens=9, enable_prefix_caching=False
    )
    add(scheduler, "a", tokens=9)
    add(scheduler, "b", prompt=20, tokens=2)
    order = []
    for _ in range(4):
        plan = scheduler.schedule(0.0)
        order.append(list(scheduled(scheduler, plan).items()))
        run(scheduler, plan)
    assert order == [
        [("a", 4), ("b", 4)],
        [("b", 8), ("a", 1)],
        [("b", 8), ("a", 1)],
        [("a", 1), ("b", 1)],
    ]


@pytest.mark.parametrize("chunking", ["first_come_first_served", "equal_progress"])
def test_chunk_policies_keep_every_invariant(chunking: str) -> None:
    for name in ("trtllm-no-evict", "trtllm-max-utilization", "trtllm-static"):
        for seed in range(60):
            random = Random(9000 + seed)
            script = random_script(random, name, "fcfs")
            config = replace(script.config, enable_chunked_prefill=True)
            knobs = {"chunking": chunking, "chunk_unit": random.choice([0, 1, 3, 50])}
            replace(script, config=config, knobs=knobs).play()


# -- what makes no sense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "knobs", "settings", "names"),
    [
        ("orca", {}, {"enable_chunked_prefill": True}, "--enable-chunked-prefill: True"),
        ("static", {}, {"long_prefill_token_threshold": 8}, "--long-prefill-token-threshold: 8"),
        ("tgi", {}, {"watermark": 0.1}, "--watermark: 0.1"),
        ("trtllm-max-utilization", {}, {"scheduler_reserve_full_isl": False}, "--scheduler-reserve-full-isl"),
        ("dynamic", {"preferred_batch_size": (2, 5)}, {}, "preferred_batch_size: 5 .* at most --max-num-seqs"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(
    name: str, knobs: dict[str, Any], settings: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigError, match=names):
        scheduler_of(name, knobs, **settings)


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("orca", {"reserve": "everything"}),
        ("trtllm-no-evict", {"chunking": "fair"}),
        ("trtllm-no-evict", {"chunk_unit": -1}),
        ("dynamic", {"preferred_batch_size": (0,)}),
        ("dynamic", {"max_queue_delay_microseconds": -1}),
        ("dynamic", {"priority_levels": 2}),
        ("dynamic", {"timeout_action": "shrug"}),
        ("dynamic", {"levels": {"1": {}}}),
        ("dynamic", {"priority_levels": 1, "default_priority_level": 1, "levels": {"1": {"timeout": 3}}}),
        ("tgi", {"max_waiting_tokens": -1}),
        ("tgi", {"waiting_served_ratio": -0.5}),
        ("tgi", {"max_concurrent_requests": 0}),
    ],
)
def test_knobs_out_of_range_are_refused(name: str, knobs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        discipline_named(name).with_knobs(knobs)


def test_late_requests_can_only_go_behind_their_level_where_there_are_levels() -> None:
    row = discipline_named("dynamic", "fcfs").with_knobs({"timeout_action": "delay"})
    with pytest.raises(ConfigError, match="--order"):
        Scheduler(row.configure(**SMALL), row)


def test_a_row_has_another_name() -> None:
    assert discipline_named("triton") is discipline_named("dynamic")
    script = {"config": {"discipline": "triton"}, "requests": [{"id": "a", "prompt_len": 2}]}
    *_, last = replay(script)
    assert last["summary"]["discipline"] == "dynamic"


def test_every_row_says_what_goes_wrong_under_it() -> None:
    for name in OURS:
        assert DISCIPLINES[name].after and DISCIPLINES[name].failure_modes
        world = World(DISCIPLINES[name].configure(**SMALL), name)
        assert world.scheduler.discipline.name == name
