"""Bytes that move between device, host and disk arrive as they were."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.core.plan import StepPlan
from paceline.errors import ConfigError
from paceline.exec.attention import LayerShape
from paceline.exec.attention.cpu import CpuAttention
from paceline.exec.attention.reference import ReferenceAttention
from paceline.exec.config import ExecutorConfig
from paceline.exec.disk_blocks import DiskBlocks
from paceline.exec.executor import ModelExecutor
from paceline.exec.host_blocks import HostBlocks
from paceline.exec.native import choose_kernels
from paceline.exec.tier_store import TierStore

LAYERS = [LayerShape(2, 8, 8), LayerShape(3, 16, 8)]
IDENTITY = bytes(32)


def attention(kind: str, dtype: torch.dtype) -> ReferenceAttention | CpuAttention:
    if kind == "reference":
        made: ReferenceAttention | CpuAttention = ReferenceAttention(dtype, torch.device("cpu"))
    else:
        kernels, reason = choose_kernels("auto", torch.device("cpu"))
        if kernels is None:
            pytest.skip(reason)
        made = CpuAttention(kernels, dtype, torch.int8 if kind == "int8" else None)
    made.allocate(LAYERS, 6, 16)
    for tensor in made.tensors():
        tensor.copy_(torch.randn(tensor.shape) * (50 if tensor.dtype == torch.int8 else 1))
    return made


def moves(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, np.int32).reshape(-1, 2)


def plan(**fields: object) -> StepPlan:
    empty = np.zeros(0, np.int32)
    return StepPlan(0, empty, empty, empty, empty.astype(bool), *([np.zeros((1, 1), np.int32)] * 3), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["reference", "cpu", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_come_back_from_the_host_as_they_left(kind: str, dtype: torch.dtype) -> None:
    made = attention(kind, dtype)
    before = [tensor.clone() for tensor in made.tensors()]
    host = HostBlocks(made.tensors(), 4)
    assert host.swap_out(moves((5, 0), (1, 3)))[0] == 2
    for tensor in made.tensors():
        tensor.zero_()
    assert host.swap_in(moves((0, 2), (3, 5)))[0] == 2
    for tensor, old in zip(made.tensors(), before, strict=True):
        assert torch.equal(tensor[2], old[5]) and torch.equal(tensor[5], old[1])
        assert not tensor[0].any() and not tensor[1].any()


@pytest.fixture
def host() -> HostBlocks:
    return HostBlocks(attention("reference", torch.float32).tensors(), 4)


def key(number: int) -> bytes:
    return bytes([number]) * 20


def test_blocks_come_back_from_disk_in_another_process_too(host: HostBlocks, tmp_path: Path) -> None:
    disk = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    store = TierStore(host, IDENTITY, disk)
    host.array[:] = np.random.default_rng(0).integers(0, 256, host.array.shape)
    expected = host.array.copy()
    moved = store.save(plan(to_disk=[(0, key(1)), (2, key(2))]))
    assert moved.written_blocks == 2
    store.save(plan(from_disk=[(key(2), 3)]))
    assert (host.array[3] == expected[2]).all(), "also while it is still being written"
    store.close()

    later = TierStore(host, IDENTITY, DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes))
    assert set(later.found) == {key(1), key(2)}
    host.array[:] = 0
    moved = later.save(plan(from_disk=[(key(1), 1)], drop_disk=[key(2)]))
    assert moved.read_blocks == 1 and (host.array[1] == expected[0]).all() and not later.take_lost()
    later.close()
    assert [path.name for path in tmp_path.rglob("*.kv")] == [f"{key(1).hex()}.kv"]


def test_a_step_writes_to_disk_what_the_host_held_before_it(host: HostBlocks, tmp_path: Path) -> None:
    disk = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    store = TierStore(host, IDENTITY, disk)
    host.array[0] = 7
    store.save(plan(to_disk=[(0, key(1))], swap_out=moves((3, 0))))
    assert (host.array[0] != 7).any()
    store.save(plan(from_disk=[(key(1), 2)]))
    assert (host.array[2] == 7).all()
    store.close()


def spoil(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "payload":
        data[-1] ^= 1
    elif how == "checksum":
        data[90] ^= 1
    elif how == "short":
        data = data[:-1]
    elif how == "long":
        data += b"x"
    elif how == "empty":
        data.clear()
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["payload", "checksum", "short", "long", "empty", "gone"])
def test_a_file_that_was_changed_is_not_believed(
    host: HostBlocks, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    store = TierStore(host, IDENTITY, disk)
    store.save(plan(to_disk=[(0, key(1)), (1, key(2))]))
    disk.read(key(2), host.array[1])
    path = next(tmp_path.rglob(f"{key(1).hex()}.kv"))
    path.unlink() if how == "gone" else spoil(path, how)
    with caplog.at_level(logging.WARNING):
        store.save(plan(from_disk=[(key(1), 2), (key(2), 3)]))
    assert store.take_lost() == [key(1)]
    assert len(caplog.records) == 1
    store.close()


def test_foreign_files_are_ignored_with_one_warning_and_left_alone(
    host: HostBlocks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    for number in (1, 2, 3):
        disk.write(key(number), host.array[0])
    disk.close()
    first, second, _ = sorted(tmp_path.rglob("*.kv"))
    spoil(first, "short")
    second.rename(second.with_name(f"{key(9).hex()}.kv"))  # says it is another block
    (first.parent / "readme.txt").write_text("hello")
    (first.parent / f"{key(7).hex()}.tmp").write_bytes(b"cut off by a crash")
    with caplog.at_level(logging.WARNING):
        again = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    assert again.found == [key(3)]
    assert len(caplog.records) == 1 and "3 files are damaged or not ours" in caplog.text
    assert first.exists() and (first.parent / "readme.txt").exists() and not list(tmp_path.rglob("*.tmp"))
    again.close()


def test_models_do_not_see_each_others_blocks(host: HostBlocks, tmp_path: Path) -> None:
    mine = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    mine.write(key(1), host.array[0])
    mine.close()
    theirs = DiskBlocks(str(tmp_path), 1 << 20, b"x" * 32, host.block_bytes)
    assert not theirs.found
    theirs.close()


def test_what_no_longer_fits_goes_the_least_recently_used_first(host: HostBlocks, tmp_path: Path) -> None:
    import os

    disk = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    for number in (1, 2, 3):
        disk.write(key(number), host.array[0])
    disk.close()
    for age, number in enumerate((2, 3, 1)):
        os.utime(next(tmp_path.rglob(f"{key(number).hex()}.kv")), (1000 + age, 1000 + age))
    smaller = DiskBlocks(str(tmp_path), 2 * (host.block_bytes + 200), IDENTITY, host.block_bytes)
    assert smaller.num_blocks == 2 and smaller.found == [key(3), key(1)]
    smaller.close()


def test_a_disk_that_takes_nothing_says_so_once(
    host: HostBlocks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil

    disk = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    shutil.rmtree(disk.folder)
    with caplog.at_level(logging.WARNING):
        disk.write(key(1), host.array[0])
        disk.write(key(2), host.array[0])
        disk.close()
        assert sorted(disk.lost()) == [key(1), key(2)]
    assert len(caplog.records) == 1


def test_settings_that_make_no_sense_are_refused(host: HostBlocks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--disk-kv: .* a directory that can be written"):
        DiskBlocks(str(tmp_path / "file"), None, IDENTITY, host.block_bytes)
    with pytest.raises(ConfigError, match=r"--disk-kv-size: 5 .* one block"):
        DiskBlocks(str(tmp_path), 5, IDENTITY, host.block_bytes)
    with pytest.raises(ConfigError, match=r"--disk-kv-size: .* free"):
        DiskBlocks(str(tmp_path), 1 << 60, IDENTITY, host.block_bytes)
    first = DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    with pytest.raises(ConfigError, match=r"no other engine uses"):
        DiskBlocks(str(tmp_path), 1 << 20, IDENTITY, host.block_bytes)
    first.close()
    with pytest.raises(ConfigError, match=r"--swap-space: 10 .* one block"):
        ModelExecutor(ExecutorConfig(num_blocks=2, max_model_len=32, dtype="float32", swap_space=10))
    with pytest.raises(ConfigError, match="--disk-kv-size"):
        ExecutorConfig(disk_kv_size=1 << 30)


def test_what_computes_and_what_holds_kv_tells_their_identities_apart(tmp_path: Path) -> None:
    from .random_models import CONFIGS, random_model, save

    directory = save(random_model(CONFIGS["llama"]()), tmp_path)
    identities = set()
    variants = [{}, {"dtype": "bfloat16"}]
    if choose_kernels("auto", torch.device("cpu")).kernels is not None:
        int8 = {"kv_cache_dtype": "int8"}
        variants += [int8, {**int8, "dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}]
    for variant in variants:
        settings = {"dtype": "float32", "num_blocks": 4, "num_host_blocks": 2, **variant}
        tiers = ModelExecutor(ExecutorConfig(str(directory), device="cpu", **settings)).tiers
        assert tiers is not None
        identities.add(tiers.identity)
    assert len(identities) == len(variants)
