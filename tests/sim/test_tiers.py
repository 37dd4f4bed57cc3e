"""Host and disk below a simulated device: what is moved is found again, and takes its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import ConfigError
from paceline.sim.cluster import Run, simulate
from paceline.sim.question import Knobs
from paceline.workload.requests import TimedRequest, Workload
from tests.sim.samples import DEPLOYMENT, spec

BLOCK_BYTES = DEPLOYMENT.kv_bytes_per_token * 16


def rounds(prompts: int, times: int, tokens: int = 640) -> Workload:
    """The same prompts again and again, one after the other, each alone."""
    return Workload(
        [
            TimedRequest(str(index), 2.0 * index, tokens, 4, parts=((index % prompts + 1, tokens),))
            for index in range(prompts * times)
        ]
    )


def run(disk: int, bandwidth: float = 3e9, **settings: object) -> Run:
    """A device and a host that hold a few of twelve prompts."""
    kind = spec(num_blocks=160, max_num_seqs=4, num_host_blocks=120, num_disk_blocks=disk, **settings)
    return simulate(rounds(12, 4), replace(kind, block_bytes=BLOCK_BYTES, disk_bandwidth=bandwidth))


def test_a_disk_gives_back_what_device_and_host_have_no_room_for() -> None:
    without, with_disk = run(0), run(2000, 30e9)
    assert without.counters["disk_read_blocks"] == 0
    assert with_disk.counters["disk_read_blocks"] > 100
    assert with_disk.counters["disk_written_blocks"] > 100
    assert with_disk.hit_rate > without.hit_rate + 0.2


def test_what_is_read_from_disk_takes_its_time() -> None:
    fast, slow = (run(2000, bandwidth, kv_load="always") for bandwidth in (30e9, 0.3e9))
    assert fast.counters["disk_read_blocks"] == slow.counters["disk_read_blocks"] > 0
    moved = (slow.counters["disk_read_blocks"] + slow.counters["disk_written_blocks"]) * BLOCK_BYTES
    assert slow.usage.seconds - fast.usage.seconds == pytest.approx(moved / 0.3e9 - moved / 30e9, rel=0.02)


def test_a_disk_slower_than_computing_is_left_alone() -> None:
    slow, always = run(2000, 0.05e9), run(2000, 0.05e9, kv_load="always")
    assert slow.counters["disk_read_blocks"] < always.counters["disk_read_blocks"] / 4


@pytest.mark.parametrize(
    ("knobs", "flag"),
    [
        ({"disk_gb": 10.0}, "--host-memory"),
        ({"host_gb": -1.0}, "--host-memory"),
        ({"host_gb": 1.0, "disk_gb": 1.0, "disk_gbs": 0.0}, "--disk-bandwidth"),
        ({"utilization": 1.5}, "--gpu-memory-utilization"),
    ],
)
def test_memory_that_makes_no_sense_is_refused(knobs: dict[str, float], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        Knobs(**knobs)  # type: ignore[arg-type]
