"""The blocks nobody refers to and whose contents nobody knows."""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """Free list over blocks 0 to `num_blocks` - 1. Last in, first out: a block just freed is warm in memory.

    `free` is public so that hot paths may test and pop it directly; order matters to nobody but is deterministic.
    """

    __slots__ = ("free", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: {num_blocks} is not valid; a pool needs at least one block")
        self.num_blocks = num_blocks
        self.free: list[int] = list(range(num_blocks - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.free)

    def take(self, count: int) -> list[int]:
        """`count` free blocks. ValueError when there are fewer, or `count` is negative."""
        free = self.free
        if not 0 <= count <= len(free):
            raise ValueError(f"cannot take {count} blocks: {len(free)} are free")
        if not count:
            return []
        taken = free[-count:]
        del free[-count:]
        taken.reverse()
        return taken

    def give(self, blocks: Sequence[int]) -> None:
        """Blocks come back. The caller vouches that nobody refers to them any more."""
        self.free.extend(blocks)
