"""Blocks in host memory, where the K/V of swapped sequences wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class HostPool:
    """Block ids 0 to `num_blocks` - 1 of the host tier: accounting only, none of them shared or indexed.

    A block that comes back may still be read by the step being scheduled (the sequence swaps in), so it is given out
    again only from the next step on.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._returning: list[int] = []

    @property
    def available(self) -> int:
        """Blocks `allocate` could give now."""
        return len(self._free)

    def begin_step(self) -> None:
        """A new step is being scheduled: what came back before is free now."""
        if self._returning:
            self._free += self._returning
            self._returning = []

    def allocate(self, count: int) -> list[int]:
        """`count` blocks. ValueError above `available`."""
        if count > len(self._free):
            raise ValueError(f"{count} host blocks asked for, {len(self._free)} of {self.num_blocks} are free")
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Blocks come back."""
        self._returning += blocks

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Prove that free, returning and held blocks are all there are, each once."""
        everything = [*self._free, *self._returning, *(block for blocks in held for block in blocks)]
        assert sorted(everything) == list(range(self.num_blocks)), "host blocks are lost or owned twice"
