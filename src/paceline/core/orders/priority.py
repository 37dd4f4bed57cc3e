"""By priority, smaller first, as vLLM orders its waiting queue."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from paceline.core.request import Sequence

Key = tuple[int, float, str]


class Priority:
    """Smaller priority first, then earlier arrival, then request id; a preempted sequence keeps its place.

    Unbounded wait for the least preferred under steady load: the original's behaviour. A heap with lazy deletion.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Sequence]] = []
        self._waiting: dict[str, int] = {}  # sequence id -> stamp of its live heap entry
        self._stamp = 0

    def add(self, sequence: Sequence) -> None:
        self._stamp += 1
        self._waiting[sequence.id] = self._stamp
        heapq.heappush(self._heap, (self._key(sequence), self._stamp, sequence))

    resume = add

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[sequence.id]
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if self._live(entry)]
            heapq.heapify(self._heap)

    def first(self) -> Sequence | None:
        while self._heap and not self._live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in sorted(entry for entry in self._heap if self._live(entry)))

    def __len__(self) -> int:
        return len(self._waiting)

    def _live(self, entry: tuple[Key, int, Sequence]) -> bool:
        return self._waiting.get(entry[2].id) == entry[1]

    @staticmethod
    def _key(sequence: Sequence) -> Key:
        return (sequence.priority, sequence.arrival, sequence.id)
