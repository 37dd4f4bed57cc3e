"""Order: who is next? The first decision point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from paceline.core.request import Sequence


class Order(Protocol):
    """The waiting sequences of a scheduler, in the order they are to be admitted.

    One object per scheduler. `add`, `resume`, `remove` and `first` are at most O(log n).
    """

    def add(self, sequence: Sequence) -> None:
        """A sequence arrives."""
        ...

    def resume(self, sequence: Sequence) -> None:
        """A preempted sequence, or the sibling of one already served, comes (back) to wait."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """It was admitted, or it ended while waiting."""
        ...

    def first(self) -> Sequence | None:
        """The next one, which stays; None when nobody waits."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, in order."""
        ...

    def __len__(self) -> int: ...
