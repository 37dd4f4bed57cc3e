"""Orders that look at the cache: what they know of it is exact, and it is worth knowing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from paceline.core.orders.ranked import RankedQueue
from paceline.core.replay import replay
from tests.core.scripts import random_script
from tests.core.world import World

ROOT = Path(__file__).parents[2]


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judge_cached(world: World) -> int:
    """Compare what the order knows with a fresh match of everybody who waits."""
    queue = world.scheduler.waiting
    assert isinstance(queue, RankedQueue)
    if queue.builder is None:
        return 0
    queue.refresh()
    size = world.config.block_size
    for slot in range(queue.size):
        match = queue.builder.lookup(queue.items[slot])
        assert queue.cached[slot] == len(match.blocks) * size, queue.items[slot]
    return queue.size


@pytest.mark.parametrize("discipline", ["paceline", "vllm", "sglang"])
def test_cached_tokens_of_those_who_wait_are_those_of_a_fresh_match(discipline: str) -> None:
    judged = 0
    for seed in range(120):
        script = random_script(Random(seed), discipline, "hrrn")
        world = World(script.config, discipline, "hrrn", script.knobs)
        for turn in range(script.turns):
            world.act(script.before.get(turn, ()))
            judged += judge_cached(world)
            world.turn((), script.mid.get(turn, ()), turn in script.fails, script.seconds)
            judged += judge_cached(world)
        while world.live:
            world.turn()
            judged += judge_cached(world)
        assert world.scheduler.kv.changes is None, "nobody waits, so nothing need be noted"
    assert judged > 1000


@pytest.mark.parametrize("order", ["hrrn", "lpm", "dfs", "dlpm"])
def test_shared_prefixes_are_found_nearly_as_often_as_they_can_be(order: str) -> None:
    """Three levels of prefixes, a cache of 12.8 prompts, 8 prompts a step: 0.752 is all there is to find."""
    result = benchmark("hit_rate").play(order)
    assert result["hit_rate"] >= 0.73
    assert result["steps"] == 125


def test_first_come_first_served_finds_little() -> None:
    assert benchmark("hit_rate").play("fcfs")["hit_rate"] < 0.3


def test_being_overtaken_is_bounded_where_sharing_is_best() -> None:
    """The bound binds: a tight one costs hits, and nobody comes later than it allows."""
    tight = benchmark("hit_rate").play("hrrn", {"stretch": 0.25, "patience": 1280})
    loose = benchmark("hit_rate").play("hrrn")
    assert tight["later"] < loose["later"] and tight["hit_rate"] < loose["hit_rate"]


def script(requests: list[dict[str, Any]], **config: Any) -> dict[str, Any]:
    settings = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 64, "order": "hrrn"}
    return {"config": {**settings, "max_model_len": 64, **config}, "requests": requests}


SHARED = list(range(100, 116))
TWO = [
    {"id": "A", "arrival_step": 0, "prompt": [*SHARED, 1, 2], "output_len": 1},
    {"id": "B", "arrival_step": 0, "prompt": [*SHARED, 3, 4], "output_len": 1},
]


def test_a_follower_waits_for_the_leader_of_its_prefix() -> None:
    cut = {"long_prefill_token_threshold": 8}
    *lines, _ = replay(script(TWO, **cut))
    assert [line["scheduled"] for line in lines] == [[["A", 8]], [["A", 8], ["B", 2]], [["A", 2]]]
    assert lines[0]["why"] == {"B": "prefix: A computes the next 4 tokens of it"}
    assert lines[1]["cached"] == {"B": 16}


def test_without_leaders_both_compute_it() -> None:
    *lines, _ = replay(script(TWO, long_prefill_token_threshold=8, leaders=False))
    assert lines[0]["scheduled"] == [["A", 8], ["B", 8]] and lines[0]["cached"] == {"A": 0, "B": 8}


def test_a_prompt_that_is_scheduled_whole_is_found_in_the_same_step() -> None:
    line = next(iter(replay(script(TWO))))
    assert line["scheduled"] == [["A", 18], ["B", 2]] and line["cached"] == {"A": 0, "B": 16}


def test_equal_cold_prompts_are_served_in_order_of_arrival() -> None:
    requests = [
        {"id": str(number), "arrival_step": number // 3, "prompt_len": 8, "output_len": 2} for number in range(12)
    ]
    lines = [
        [line.get("new") for line in replay(script(requests, max_num_seqs=2, order=order))]
        for order in ("fcfs", "hrrn", "lpm")
    ]
    assert lines[0] == lines[1] == lines[2]


def test_lpm_turns_to_arrival_above_its_limit() -> None:
    family = [
        {"id": f"w{number}", "arrival_step": 1, "prompt": [*SHARED, number, number], "output_len": 1}
        for number in range(3)
    ]
    first = {"id": "A", "arrival_step": 0, "prompt": [*SHARED, 90, 91], "output_len": 1}
    cold = {"id": "cold", "arrival_step": 1, "prompt_len": 18, "output_len": 1}
    requests = [first, cold, *family]
    for limit, second in ((0, "w0"), (4, "w0"), (3, "cold")):
        *lines, _ = replay(script(requests, max_num_seqs=1, order="lpm", fcfs_above=limit))
        assert lines[1]["new"] == [second]


@pytest.mark.parametrize("extra", [["--order", "hrrn"], ["--order", "lpm", "--abort"]])
def test_the_benchmark_of_a_pass_prints_its_figures(extra: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "benchmarks/order_pass.py", "--waiting", "40", "--passes", "3", "--json", *extra],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (result,) = json.loads(ran.stdout)["results"]
    assert result["waiting"] == 40 and (result.get("changed_ms", 1.0) > 0)
