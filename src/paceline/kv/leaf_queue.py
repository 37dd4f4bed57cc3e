"""Which cached leaf was used longest ago."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from paceline.kv.radix_node import RadixNode


class LeafQueue:
    """Lazy heap of leaves by the time of their last release.

    A node has at most one entry. Entries are not touched when a node is used again: one whose stamp is out of date
    is put right, and one whose node is no idle leaf any more is dropped, when it comes up. All O(log n), amortised.
    """

    __slots__ = ("_dead", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._dead = 0  # entries of nodes that left the tree

    def push(self, node: RadixNode) -> None:
        """`node` is an idle leaf now."""
        if not node.queued:
            node.queued = True
            heappush(self._heap, (node.stamp, node.serial, node))

    def oldest(self) -> RadixNode:
        """The idle leaf released longest ago; it stays at the head. IndexError when there is none."""
        heap = self._heap
        while True:
            stamp, _, node = heap[0]
            if node.holders or node.children or not node.blocks:
                heappop(heap)
                node.queued = False
                if not node.blocks:
                    self._dead -= 1
            elif node.stamp != stamp:
                heapreplace(heap, (node.stamp, node.serial, node))
            else:
                return node

    def remove_oldest(self) -> None:
        """Drop the entry `oldest` has just returned."""
        heappop(self._heap)[2].queued = False

    def bury(self, node: RadixNode) -> None:
        """`node`, emptied of its blocks, left the tree otherwise than by eviction."""
        if not node.queued:
            return
        self._dead += 1
        if self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].blocks]
            heapify(self._heap)
            self._dead = 0

    def clear(self) -> None:
        """Forget every entry."""
        for _, _, node in self._heap:
            node.queued = False
        self._heap.clear()
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap)
