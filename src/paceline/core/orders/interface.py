"""Order: who is next? The first decision point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

from paceline.core.request import Sequence


class Order(Protocol):
    """The waiting sequences of a scheduler, in the order they are to be admitted.

    One object per scheduler. `add`, `resume`, `remove` and `first` are at most O(log n) unless it says otherwise.
    An order may also have the following, and costs nothing where it has not:

    - `attach(builder)`: whose queue it is, once.
    - `begin(builder, now)`: a step begins; `now` in seconds on the caller's clock.
    - `walk() -> Iterator[Sequence]`: as iterating over it, but whoever was yielded may be admitted before the next is
      asked for, and the order may answer to that. Each at most once.
    - `hold(sequence, match) -> str | None`: why it should rather not start in this step ("prefix: ..."); others may.
    - `started(sequence, cached)`: it was admitted, with so many tokens from the cache; its state is still the old one.
    - `generated(batch, rows)`: each of these rows [S] has got one more token.
    - `ended(sequence)`: it ended, from whatever state.
    - `reweigh(weights, tenants)`: the weights of tenants, by name, have changed; `tenants`: the index of each name.
    - `key(sequence)`: what it sorts by, waiting or running, smaller first, and `ran(sequences)`: they are in the step.
      For compositions that put running sequences into the same order as waiting ones.
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


class Policy(Protocol):
    """A row of the table of orders: a frozen dataclass whose fields are the order's knobs."""

    bound: ClassVar[str]  # how long one may wait at most while others are served; "unbounded: ..." where there is none

    def queue(self) -> Order:
        """A fresh, empty order."""
        ...
