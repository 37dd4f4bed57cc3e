"""Prefixes that left the device and come back from the host and from disk. The driver proves the contents."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.preemption import Swap
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError
from tests.core.asks import Ask
from tests.core.world import World

PREFIX = tuple(range(100, 112))  # three blocks


def world(discipline: str = "paceline", **settings: Any) -> World:
    given = {key: settings.pop(key) for key in ("block_seconds", "damaged") if key in settings}
    defaults = {
        "num_blocks": 8,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 32,
        "num_host_blocks": 16,
    }
    return World(SchedulerConfig(**{**defaults, **settings}), discipline, **given)


def ask(here: World, name: str, prompt: tuple[int, ...], salt: str | None = None) -> None:
    """Serve one request alone."""
    here.add(Ask(name, prompt, max_tokens=2, salt=salt))
    here.drain_keeping_cache()


def wash(here: World, times: int = 1) -> None:
    """Others need all blocks of the device."""
    for index in range(times):
        ask(here, f"wash{here.steps}.{index}", tuple(range(1000 + 100 * here.steps, 1028 + 100 * here.steps)))


@pytest.mark.parametrize("discipline", ["paceline", "vllm"])
def test_a_prefix_that_was_evicted_comes_back_from_the_host(discipline: str) -> None:
    here = world(discipline)
    ask(here, "a", PREFIX)
    wash(here)
    assert here.scheduler.totals.demoted_blocks >= 3
    ask(here, "b", (*PREFIX, 7))
    assert here.ended["b"].cached_tokens == 12
    assert here.scheduler.totals.promoted_blocks == 3


def test_a_hit_on_the_device_goes_on_on_the_host() -> None:
    here = world(num_blocks=9)
    ask(here, "a", PREFIX)
    ask(here, "wash", tuple(range(1000, 1026)))  # takes the last blocks of the prefix only
    here.add(Ask("b", (*PREFIX, 7), max_tokens=2))
    here.turn()
    step = here.scheduler.step
    assert step is not None and step.cached["b"] == 12
    assert 0 < step.promoted["b"] < 3
    here.drain()


def test_salts_keep_prefixes_apart_on_the_host_too() -> None:
    here = world()
    ask(here, "a", PREFIX, salt="one")
    wash(here)
    ask(here, "b", (*PREFIX, 7), salt="two")
    assert here.ended["b"].cached_tokens == 0
    ask(here, "c", (*PREFIX, 7), salt="one")
    assert here.ended["c"].cached_tokens == 12


def test_twins_of_one_step_share_what_comes_from_the_host() -> None:
    here = world()
    ask(here, "a", PREFIX)
    wash(here)
    here.add(Ask("b", (*PREFIX, 7), max_tokens=2))
    here.add(Ask("c", (*PREFIX, 8), max_tokens=2))
    plan = here.turn()
    assert plan is not None and len(plan.swap_in) == 3
    here.drain()
    assert here.ended["b"].cached_tokens == here.ended["c"].cached_tokens == 12


def test_a_step_that_failed_neither_demoted_nor_loaded_anything() -> None:
    here = world()
    ask(here, "a", PREFIX)
    here.add(Ask("wash", tuple(range(1000, 1028)), max_tokens=2))
    here.turn(fail=True)
    assert not here.scheduler.builder.tiers.cached
    here.drain_keeping_cache()
    ask(here, "b", (*PREFIX, 7))
    assert here.ended["b"].cached_tokens < 12, "what the failed step evicted is gone"
    wash(here)
    here.add(Ask("c", (*PREFIX, 7), max_tokens=2))
    here.turn(fail=True)
    here.drain_keeping_cache()
    assert here.ended["c"].cached_tokens == 12
    here.drain()


def test_what_disk_has_is_read_to_the_host_first_while_others_run() -> None:
    here = world(num_host_blocks=4, num_disk_blocks=64)
    ask(here, "a", PREFIX)
    wash(here, 3)
    assert here.scheduler.totals.disk_written_blocks > 3
    here.add(Ask("other", (1, 2, 3), max_tokens=4))
    here.turn()
    here.add(Ask("b", (*PREFIX, 7), max_tokens=2))
    plan = here.turn()
    assert plan is not None and plan.rows.size == 1 and len(plan.from_disk) == 3
    assert here.scheduler.why()["b"] == "disk: 3 blocks of its prefix are being read"
    plan = here.turn()
    assert plan is not None and len(plan.swap_in) == 3
    here.drain()
    assert here.ended["b"].cached_tokens == 12


def test_what_disk_lost_is_computed() -> None:
    here = world(num_host_blocks=4, num_disk_blocks=64, damaged=1)
    ask(here, "a", PREFIX)
    wash(here, 3)
    ask(here, "b", (*PREFIX, 7))
    assert here.ended["b"].cached_tokens == 0
    assert here.scheduler.totals.disk_lost_blocks == 3
    here.drain()


def test_a_new_scheduler_finds_what_an_old_one_left_on_disk() -> None:
    here = world(num_host_blocks=4, num_disk_blocks=64)
    ask(here, "a", PREFIX)
    while (plan := here.scheduler.flush(here.now)) is not None:
        here.scheduler.complete(here._execute(plan), here.now)
        here.scheduler.check()
    assert here.scheduler.kv.available == here.scheduler.kv.free

    later = world(num_host_blocks=4, num_disk_blocks=64)
    later.device.disk = here.device.disk
    later.scheduler = Scheduler(later.config, "paceline", here.device.disk)
    ask(later, "b", (*PREFIX, 7))
    assert later.ended["b"].cached_tokens == 12
    stranger = world(num_host_blocks=4, num_disk_blocks=64, kv_identity="other weights")
    stranger.device.disk = later.device.disk
    stranger.scheduler = Scheduler(stranger.config, "paceline", later.device.disk)
    ask(stranger, "c", (*PREFIX, 7))
    assert stranger.ended["c"].cached_tokens == 0


@pytest.mark.parametrize(
    ("kv_load", "block_seconds", "hit"),
    [("auto", 0.0, True), ("auto", 1000.0, False), ("always", 1000.0, True), ("never", 0.0, False)],
)
def test_loading_must_beat_computing_unless_told_otherwise(kv_load: str, block_seconds: float, hit: bool) -> None:
    here = world(kv_load=kv_load, block_seconds=block_seconds, max_model_len=64, num_blocks=16, num_host_blocks=32)
    costs = here.scheduler.builder.costs
    ask(here, "a", (*range(200, 248),))  # tells what a prompt token costs
    costs.into = block_seconds
    assert costs.token is not None
    ask(here, "b", PREFIX)
    for index in range(2):
        ask(here, f"wash{index}", tuple(range(1000 + 100 * index, 1060 + 100 * index)))
    ask(here, "c", (*PREFIX, 7))
    assert (here.ended["c"].cached_tokens == 12) is hit


def test_a_swapped_sequence_takes_room_from_cached_prefixes() -> None:
    here = world("vllm-v0", num_blocks=5, num_host_blocks=3, enable_prefix_caching=True)
    here.scheduler.builder.how = Swap()
    ask(here, "p", tuple(range(300, 316)))
    here.add(Ask("a", tuple(range(100, 107)), max_tokens=6))
    here.add(Ask("b", tuple(range(200, 207)), max_tokens=6))
    here.drain()
    assert here.scheduler.totals.demoted_blocks > 0 < here.scheduler.totals.swapped_out_blocks


def test_a_disk_without_a_host_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--num-host-blocks: 0 .* with --disk-kv"):
        world(num_host_blocks=0, num_disk_blocks=4)
    with pytest.raises(ConfigError, match="--kv-load: 'maybe'"):
        world(kv_load="maybe")


def test_the_same_results_give_the_same_costs_and_decisions() -> None:
    def play() -> list[str]:
        here = world(block_seconds=0.3, num_disk_blocks=8, num_host_blocks=6)
        for index in range(6):
            ask(here, f"a{index}", (*PREFIX, index))
            wash(here)
        return here.log

    assert play() == play()
