"""What leaves the device and comes back, from the host or from disk, is what was computed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.core.params import SamplingParams
from paceline.exec.executor import ExecutorConfig, ModelExecutor
from paceline.kv.content import extend_keys, root_key

from .conftest import NEW_TOKENS
from .rig import Rig

GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
pytestmark = pytest.mark.slow

CONFIG = ExecutorConfig(
    dtype="float32", block_size=16, num_blocks=48, max_num_seqs=32, max_model_len=256, num_host_blocks=96, threads=1
)


@pytest.fixture(scope="module")
def small() -> Iterator[ModelExecutor]:
    """Few device blocks, twice as many on the host."""
    executor = ModelExecutor(CONFIG)
    yield executor
    executor.close()


def start(
    executor: ModelExecutor,
    discipline: str = "paceline",
    order: str | None = None,
    knobs: dict[str, object] | None = None,
    **settings: object,
) -> Rig:
    tiers = executor.tiers
    assert tiers is not None
    rig = Rig(executor)
    defaults: dict[str, object] = {
        "num_host_blocks": executor.num_host_blocks,
        "num_disk_blocks": tiers.num_disk_blocks,
        "kv_identity": tiers.identity.hex(),
        "max_model_len": 256,
        "kv_load": "always",
    }
    rig.start(discipline, order, knobs, tiers.found, **{**defaults, **settings})
    return rig


def run(rig: Rig, prompts: list[list[int]], name: str = "p") -> list[list[int]]:
    for index, prompt in enumerate(prompts):
        rig.add(f"{name}{index}", prompt, GREEDY, priority=index % 3)
    rig.run()
    return [rig.tokens[f"{name}{index}"] for index in range(len(prompts))]


def test_sequences_that_were_swapped_to_the_host_say_the_same(
    small: ModelExecutor, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    rig = start(small, "vllm", "fcfs", {"how": "swap"}, num_blocks=20, enable_prefix_caching=False)
    assert run(rig, prompts) == expected
    assert rig.scheduler.totals.swapped_in_blocks > 0


def test_so_do_those_whose_place_others_of_better_priority_took(
    small: ModelExecutor, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    rig = start(small, "paceline", "priority", {"how": "swap"}, num_blocks=24, enable_prefix_caching=False)
    for index in range(0, len(prompts), 2):
        rig.add(f"p{index}", prompts[index], GREEDY, priority=5)

    def come(rig: Rig, step: int) -> None:
        if step == 4:
            for index in range(1, len(prompts), 2):
                rig.add(f"p{index}", prompts[index], GREEDY, priority=index % 3)

    rig.run(come)
    assert [rig.tokens[f"p{index}"] for index in range(len(prompts))] == expected
    totals = rig.scheduler.totals
    assert totals.displaced > 0 and totals.swapped_in_blocks > 0


def test_prefixes_that_were_evicted_to_the_host_are_hits(
    small: ModelExecutor, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    rig = start(small, num_blocks=24)
    assert run(rig, prompts, "cold") == expected
    assert run(rig, prompts, "warm") == expected
    totals = rig.scheduler.totals
    assert totals.demoted_blocks > 0 < totals.promoted_blocks
    assert totals.prefix_hit_tokens > 16 * totals.promoted_blocks > 0


def test_prefixes_on_disk_are_hits_also_after_a_restart(
    tmp_path: Path, prompts: list[list[int]], expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(CONFIG, num_host_blocks=8, num_blocks=24, disk_kv=str(tmp_path), disk_kv_size=1 << 28)
    executor = ModelExecutor(config)
    rig = start(executor)
    assert run(rig, prompts) == expected
    assert rig.scheduler.totals.disk_written_blocks > 0
    save(rig)
    executor.close()

    files = sorted(tmp_path.rglob("*.kv"))
    assert len(files) > 40 and not list(tmp_path.rglob("*.tmp"))
    (files[0].parent / "notes.txt").write_text("not a block")
    again = ModelExecutor(config)
    assert sum("damaged or not ours" in record.message for record in caplog.records) == 1
    rig = start(again)
    assert run(rig, prompts) == expected
    totals = rig.scheduler.totals
    assert totals.prefix_hit_tokens >= 16 * 16 and totals.disk_read_blocks > 0 == totals.disk_lost_blocks
    again.close()


def test_a_block_that_was_damaged_on_disk_is_computed_again(
    tmp_path: Path, prompts: list[list[int]], expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
    config = replace(CONFIG, disk_kv=str(tmp_path), disk_kv_size=1 << 28)
    first = ModelExecutor(config)
    rig = start(first)
    assert run(rig, [prompts[longest]]) == [expected[longest]]
    save(rig)
    first.close()

    keys: list[bytes] = []
    assert first.tiers is not None
    root = root_key(first.tiers.identity.hex().encode(), b"")
    extend_keys(keys, root, np.array(prompts[longest], np.int32).tobytes(), 64, 3)
    damaged = next(tmp_path.rglob(f"{keys[1].hex()}.kv"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)

    executor = ModelExecutor(config)
    rig = start(executor)
    with caplog.at_level(logging.WARNING):
        assert run(rig, [prompts[longest]]) == [expected[longest]]
    assert [record.name for record in caplog.records] == ["paceline.exec.disk_blocks"]
    assert rig.scheduler.totals.disk_lost_blocks == 1 and rig.scheduler.totals.prefix_hit_tokens == 16
    executor.close()


def save(rig: Rig) -> None:
    """As an engine does before a clean end."""
    while (plan := rig.scheduler.flush(0.0)) is not None:
        rig.scheduler.complete(rig.executor.execute(plan), 0.0)
        rig.scheduler.check()
