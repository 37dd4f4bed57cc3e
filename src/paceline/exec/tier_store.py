"""The bytes of the tiers below the device: does what a plan says of them, and says what it took."""

from __future__ import annotations

import time

import torch

from paceline.core.plan import Moved, StepPlan
from paceline.errors import ConfigError
from paceline.exec.attention import Attention
from paceline.exec.config import ExecutorConfig
from paceline.exec.disk_blocks import DiskBlocks
from paceline.exec.host import available_memory
from paceline.exec.host_blocks import HostBlocks
from paceline.exec.identity import kv_identity
from paceline.exec.source import ModelSource

_SMALLEST = 256 << 20  # bytes of host memory that blocks of a disk tier pass through, where nothing was said of it


def open_tiers(config: ExecutorConfig, source: ModelSource, attention: Attention, model: str) -> TierStore | None:
    """The tiers a configuration asks for; None: none. `model`: what computes K/V, and in which
    numbers.

    ConfigError when there is too little memory or disk.
    """
    tensors = attention.tensors()
    block_bytes = sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)
    space = config.swap_space
    if space is None and config.disk_kv is not None:
        space = _SMALLEST
    count = config.num_host_blocks if config.num_host_blocks is not None else (space or 0) // block_bytes
    if not count:
        if config.disk_kv is not None:
            raise ConfigError("--swap-space", space, f"at least {block_bytes} with --disk-kv: blocks pass through it")
        if space:
            raise ConfigError("--swap-space", space, f"at least {block_bytes}, one block")
        return None
    if count * block_bytes > (available := available_memory(torch.device("cpu"))):
        flag = "--swap-space" if config.num_host_blocks is None else "--num-host-blocks"
        raise ConfigError(flag, space or count, f"less: {available / 2**30:.2f} GiB of memory are available")
    identity = kv_identity(source, [model, type(attention).__name__], tensors)
    host = HostBlocks(tensors, count)
    if config.disk_kv is None:
        return TierStore(host, identity)
    return TierStore(host, identity, DiskBlocks(config.disk_kv, config.disk_kv_size, identity, block_bytes))


class TierStore:
    """Host blocks, and disk behind them. Knows no contents and makes no choices: those are the scheduler's.

    A step calls `save` before it writes anything to the device, then copies its blocks, then calls `load`.
    """

    def __init__(self, host: HostBlocks, identity: bytes, disk: DiskBlocks | None = None) -> None:
        self.host = host
        self.identity = identity
        self.disk = disk
        self._lost: list[bytes] = []

    def save(self, plan: StepPlan) -> Moved:
        """Everything but the copies to the device."""
        moved = Moved()
        if self.disk is not None and (plan.drop_disk or plan.to_disk or plan.from_disk):
            moved = self._move_disk(self.disk, plan)
        if len(plan.swap_out):
            blocks, seconds = self.host.swap_out(plan.swap_out)
            moved = moved._replace(out_blocks=blocks, out_seconds=seconds)
        return moved

    def load(self, plan: StepPlan, moved: Moved) -> Moved:
        """The copies to the device, added to what `save` returned."""
        if not len(plan.swap_in):
            return moved
        blocks, seconds = self.host.swap_in(plan.swap_in)
        return moved._replace(in_blocks=blocks, in_seconds=seconds)

    def take_lost(self) -> list[bytes]:
        """Keys that disk did not give, or did not take, since the last call."""
        lost, self._lost = self._lost, []
        return lost if self.disk is None else lost + self.disk.lost()

    def _move_disk(self, disk: DiskBlocks, plan: StepPlan) -> Moved:
        self.host.wait()
        begin = time.perf_counter()
        for key in plan.drop_disk:
            disk.drop(key)
        for block, key in plan.to_disk:
            disk.write(key, self.host.array[block])
        written = time.perf_counter()
        self._lost += [key for key, block in plan.from_disk if not disk.read(key, self.host.array[block])]
        return Moved(
            read_blocks=len(plan.from_disk),
            read_seconds=time.perf_counter() - written,
            written_blocks=len(plan.to_disk),
            write_seconds=written - begin,
        )

    @property
    def num_disk_blocks(self) -> int:
        return 0 if self.disk is None else self.disk.num_blocks

    @property
    def found(self) -> list[bytes]:
        """Content keys that earlier runs left on disk, the least recently used first."""
        return [] if self.disk is None else self.disk.found

    def describe(self) -> list[str]:
        """Lines for the log at start."""
        host = self.host
        lines = [f"host tier {host.num_blocks:,} blocks ({host.num_blocks * host.block_bytes / 2**20:,.0f} MiB)"]
        if self.disk is not None:
            lines.append(
                f"disk tier {self.disk.num_blocks:,} blocks ({self.disk.size / 2**20:,.0f} MiB) in "
                f"{self.disk.folder}, {len(self.disk.found):,} of them from earlier runs"
            )
        return lines

    def close(self) -> None:
        """Finish what is being written."""
        if self.disk is not None:
            self.disk.close()
