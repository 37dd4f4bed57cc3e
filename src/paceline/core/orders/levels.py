"""First come, first served within each level, smaller levels first, as Triton's priority queue."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.request import Sequence


class _Level:
    def __init__(self) -> None:
        self.timely: OrderedDict[str, Sequence] = OrderedDict()
        self.delayed: OrderedDict[str, Sequence] = OrderedDict()


class Levels:
    """A queue per level (`Sequence.priority`), and behind it one for those that were too late and may still run.

    Unbounded wait for the last levels under steady load: the original's behaviour. O(levels) at most.
    """

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}  # those with somebody waiting
        self._order: list[int] = []

    def add(self, sequence: Sequence) -> None:
        self._level(sequence).timely[sequence.id] = sequence

    def resume(self, sequence: Sequence) -> None:
        level = self._level(sequence)
        level.timely[sequence.id] = sequence
        level.timely.move_to_end(sequence.id, last=False)

    def delay(self, sequence: Sequence) -> None:
        """It is too late: behind all others of its level."""
        level = self._levels[sequence.priority]
        level.delayed[sequence.id] = level.timely.pop(sequence.id)

    def is_delayed(self, sequence: Sequence) -> bool:
        return sequence.id in self._levels[sequence.priority].delayed

    def remove(self, sequence: Sequence) -> None:
        level = self._levels[sequence.priority]
        if level.timely.pop(sequence.id, None) is None:
            del level.delayed[sequence.id]
        if not level.timely and not level.delayed:
            del self._levels[sequence.priority]
            self._order.remove(sequence.priority)

    def first(self) -> Sequence | None:
        return next(iter(self), None)

    def size(self, level: int) -> int:
        """How many wait at a level."""
        found = self._levels.get(level)
        return 0 if found is None else len(found.timely) + len(found.delayed)

    def __iter__(self) -> Iterator[Sequence]:
        for number in self._order:
            level = self._levels[number]
            yield from level.timely.values()
            yield from level.delayed.values()

    def __len__(self) -> int:
        return sum(self.size(level) for level in self._order)

    def _level(self, sequence: Sequence) -> _Level:
        number = sequence.priority
        if number not in self._levels:
            self._levels[number] = _Level()
            insort(self._order, number)
        return self._levels[number]


@dataclass(frozen=True)
class LevelsPolicy:
    """First come, first served within each priority level, after Triton."""

    bound: ClassVar[str] = (
        "unbounded: the original's behaviour; within a level, order: nobody who came later goes first"
    )

    def queue(self) -> Levels:
        return Levels()
