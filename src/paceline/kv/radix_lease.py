"""What a sequence holds in a radix cache."""

from __future__ import annotations

from paceline.kv.interface import Lease
from paceline.kv.radix_node import RadixNode


class RadixLease(Lease):
    """A path from a root down to the end of `node`, which ends with block `registered` of the sequence."""

    __slots__ = ("era", "positions", "twins")

    def __init__(self, namespace: bytes, node: RadixNode, registered: int, era: int) -> None:
        super().__init__(namespace, node, registered)
        self.era = era  # resets before this lease was opened
        self.positions: list[int] = []  # where in the block table `twins` are, ascending; `shadow` runs along
        self.twins: list[int] = []  # own blocks whose tokens the tree has under the block in `shadow`
