"""First come, first served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.request import Sequence


class Fcfs:
    """By order of submission; a preempted sequence goes to the front, so its turn is not lost. All O(1)."""

    def __init__(self) -> None:
        self._queue: OrderedDict[str, Sequence] = OrderedDict()

    def add(self, sequence: Sequence) -> None:
        self._queue[sequence.id] = sequence

    def resume(self, sequence: Sequence) -> None:
        self._queue[sequence.id] = sequence
        self._queue.move_to_end(sequence.id, last=False)

    def remove(self, sequence: Sequence) -> None:
        del self._queue[sequence.id]

    def first(self) -> Sequence | None:
        return next(iter(self._queue.values()), None)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue.values())

    def __len__(self) -> int:
        return len(self._queue)


@dataclass(frozen=True)
class FcfsPolicy:
    """First come, first served. The default of nearly every engine."""

    bound: ClassVar[str] = "order: nobody who came later is served before"

    def queue(self) -> Fcfs:
        return Fcfs()
