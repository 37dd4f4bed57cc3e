"""What the user set, what a discipline has, and what a goal makes of both."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import DISCIPLINES
from paceline.engine.config import EngineConfig
from paceline.engine.goals import GOALS
from paceline.errors import ConfigError

CONTEXT = 8192


@pytest.mark.parametrize("name", list(DISCIPLINES))
def test_what_is_not_set_is_the_disciplines(name: str) -> None:
    config = EngineConfig(discipline=name)
    row, scheduler = DISCIPLINES[name], config.scheduler(4096, CONTEXT, (2,))
    row.check(scheduler)
    for setting, value in row.defaults.items():
        if setting != "max_num_batched_tokens" or scheduler.enable_chunked_prefill:
            assert getattr(scheduler, setting) == value, setting
    if not scheduler.enable_chunked_prefill:
        assert scheduler.max_num_batched_tokens >= CONTEXT  # the longest prompt fits in one step
    executor = config.executor()
    assert (executor.block_size, executor.max_num_seqs) == (scheduler.block_size, scheduler.max_num_seqs)


def test_what_is_set_goes_before_the_discipline_and_reaches_the_executor() -> None:
    config = EngineConfig(discipline="nano-vllm", block_size=32, max_num_seqs=8, knobs={"watermark": 0.25})
    scheduler, executor = config.scheduler(64, 512, ()), config.executor()
    assert (scheduler.block_size, scheduler.max_num_seqs, scheduler.watermark) == (32, 8, 0.25)
    assert (executor.block_size, executor.max_num_seqs) == (32, 8)
    assert scheduler.max_num_batched_tokens == 16384


def test_knobs_change_the_rows_objects_and_no_others_row() -> None:
    row = EngineConfig(knobs={"growth": 4, "window": 2, "buckets": [128, 512]}).schedule_by()
    assert (row.knobs()["growth"], row.knobs()["window"], row.knobs()["buckets"]) == (4, 2, (128, 512))
    assert DISCIPLINES["paceline"].knobs()["growth"] == 16


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"discipline": "orca", "enable_chunked_prefill": True}, ("--enable-chunked-prefill", "whole")),
        ({"discipline": "orca", "watermark": 0.1}, ("--watermark", "orca", "whole lives")),
        (
            {"discipline": "orca", "max_num_batched_tokens": 256, "max_model_len": 512},
            ("--max-num-batched-tokens", "512"),
        ),
        ({"threads": 100_000}, ("--threads", "100000", "from 1 to")),
        ({"max_model_len": 1}, ("--max-model-len", "at least 2")),
        ({"disk_kv": " "}, ("--disk-kv", "a directory")),
        ({"disk_kv": "kv", "enable_prefix_caching": False}, ("--disk-kv", "prefix caching is off")),
        ({"knobs": {"growth": "many"}}, ("growth", "many")),
        ({"discipline": "vllm", "knobs": {"growth": "many"}}, ("growth", "many", "at least 0, or null")),
        ({"knobs": {"grwth": 3}}, ("grwth", "growth")),
        ({"knobs": {"growth": -1}}, ("--knob growth", "-1", "at least 0")),
        ({"knobs": {"how": "swap"}}, ("--knob how", "swap", "--swap-space")),
        ({"knobs": {"num_blocks": 3}}, ("num_blocks",)),
        ({"knobs": {"watermark": 7}}, ("--watermark", "7")),
        ({"knobs": {"watermark": 0.1}, "watermark": 0.2}, ("--watermark", "--knob")),
        ({"knobs": {"buckets": [5, 3]}}, ("buckets",)),
        ({"optimize": "speed"}, ("--optimize", "ttft")),
        ({"request_log_size": -1}, ("--request-log-size",)),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(settings: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**settings)
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize("goal", list(GOALS))
@pytest.mark.parametrize("name", list(DISCIPLINES))
def test_a_goal_goes_with_every_discipline_and_says_what_it_did(name: str, goal: str) -> None:
    config = EngineConfig(discipline=name, optimize=goal)
    config.scheduler(4096, CONTEXT, ())
    config.executor()
    assert all(line.count(":") or "as you set it" in line for line in config.tuning.lines)
    assert config.tuning.lines


def test_a_goal_leaves_alone_what_the_user_set() -> None:
    config = EngineConfig(optimize="tail", max_num_seqs=300, order="priority", knobs={"how": "swap"}, swap_space=2**30)
    scheduler = config.scheduler(4096, CONTEXT, ())
    assert scheduler.max_num_seqs == 300 and config.schedule_by().order == "priority"
    assert config.schedule_by().knobs()["how"] == "swap"
    assert scheduler.watermark == 0.15  # not set by the user
    stays = [line for line in config.tuning.lines if "as you set it" in line]
    assert [line.split()[0] for line in stays] == ["order", "max_num_seqs", "how"]


def test_a_goal_turns_each_knob_the_way_it_is_meant() -> None:
    tpot = EngineConfig(optimize="tpot", discipline="sglang").scheduler(4096, CONTEXT, ())
    assert (tpot.max_num_seqs, tpot.max_num_batched_tokens, tpot.watermark) == (64, 512, 0.1)
    throughput = EngineConfig(optimize="throughput", discipline="trtllm-max-utilization").scheduler(4096, CONTEXT, ())
    assert throughput.max_num_seqs == 2048  # more than the goal asks for stays
    assert EngineConfig(optimize="fairness").schedule_by().order == "vtc"


@pytest.mark.parametrize("goal", list(GOALS))
@pytest.mark.parametrize("name", ["orca", "static", "paceline"])
def test_what_a_goal_says_it_set_is_what_serves(goal: str, name: str) -> None:
    config = EngineConfig(optimize=goal, discipline=name)
    served = config.scheduler(4096, CONTEXT, ())
    said = dict(line.split(":")[0].split(" = ") for line in config.tuning.lines if " = " in line.split(":")[0])
    for setting in set(said) & set(SchedulerConfig.__dataclass_fields__):
        value = getattr(served, setting)
        shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        assert said[setting].removesuffix(f", as {name} has it") == shown
