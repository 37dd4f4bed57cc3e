"""A heap of waiting sequences: the base of orders whose keys rarely change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from paceline.core.request import Sequence


def without_dead(times: list[Any], size: int, alive: Callable[[Sequence], bool]) -> list[Any]:
    """A heap of (time, ..., sequence), where it has grown far beyond `size`, without the sequences that are gone."""
    if len(times) <= 4 * size + 64:
        return times
    times = [entry for entry in times if alive(entry[-1])]
    heapify(times)
    return times


Entry = tuple[tuple[Any, ...], int, Sequence]


class HeapQueue(ABC):
    """Smallest `key` first. A heap with lazy deletion; the first k in order cost O(k log k)."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._waiting: dict[str, int] = {}  # sequence id -> stamp of its live heap entry
        self._stamp = 0

    @abstractmethod
    def key(self, sequence: Sequence) -> tuple[Any, ...]:
        """What a sequence sorts by; no two are equal. Where it changes while it waits, the order calls `rekey`."""

    def add(self, sequence: Sequence) -> None:
        self._stamp += 1
        self._waiting[sequence.id] = self._stamp
        heappush(self._heap, (self.key(sequence), self._stamp, sequence))

    def resume(self, sequence: Sequence) -> None:
        self.add(sequence)

    def rekey(self, sequence: Sequence) -> None:
        """Its key has changed."""
        HeapQueue.add(self, sequence)
        self._compact()

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[sequence.id]
        self._compact()

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if self._live(entry)]
            heapify(self._heap)

    def first(self) -> Sequence | None:
        while self._heap and not self._live(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def __iter__(self) -> Iterator[Sequence]:
        heap = self._heap
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, at = heappop(frontier)
            for below in (2 * at + 1, 2 * at + 2):
                if below < len(heap):
                    heappush(frontier, (heap[below], below))
            if self._live(entry):
                yield entry[2]

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._waiting

    def _live(self, entry: Entry) -> bool:
        return self._waiting.get(entry[2].id) == entry[1]
