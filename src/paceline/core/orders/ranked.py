"""Waiting sequences as columns: the base of orders whose keys change all the time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from paceline.core.orders.prefix_watch import PrefixWatch
from paceline.core.request import Sequence

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder

Floats = npt.NDArray[np.float64]
_AT_ONCE = 64  # sequences sorted at a time


class RankedQueue(ABC):
    """Smallest rank first, then in order of arrival; those who come back first of all, so that their turn is not lost.

    Adding and removing are O(1); a look at the order costs a few vector operations over everybody who waits, and a
    match for each whose cached prefix changed since.
    """

    def __init__(self) -> None:
        self.builder: StepBuilder | None = None
        self.size = 0
        self.items: npt.NDArray[np.object_] = np.full(64, None, object)
        self.columns: Floats = np.zeros((6, 64))
        self._watch = PrefixWatch()
        self._slots: dict[str, int] = {}
        self._places = 0

    # Columns, each [size]. Counts of tokens are exact in a float.

    @property
    def place(self) -> Floats:
        """Order of arrival; below 0 for who came back, the last of them first."""
        return self.columns[0, : self.size]

    @property
    def tokens(self) -> Floats:
        return self.columns[1, : self.size]

    @property
    def cached(self) -> Floats:
        """Tokens of them in whole cached blocks."""
        return self.columns[2, : self.size]

    @property
    def entered(self) -> Floats:
        """What `stamps` said when it came."""
        return self.columns[3, : self.size]

    @property
    def due(self) -> Floats:
        return self.columns[4, : self.size]

    @property
    def tenant(self) -> Floats:
        return self.columns[5, : self.size]

    @abstractmethod
    def rank(self) -> Floats:
        """[size] what to sort by."""

    def stamps(self, sequence: Sequence) -> tuple[float, float]:
        """`entered` and `due` of a sequence that comes."""
        return 0.0, 0.0

    # -- coming and going -------------------------------------------------------------------------------------------

    def attach(self, builder: StepBuilder) -> None:
        self.builder = builder

    def add(self, sequence: Sequence) -> None:
        self._places += 1
        self._enter(sequence, self._places)

    def resume(self, sequence: Sequence) -> None:
        self._places += 1
        self._enter(sequence, -self._places)

    def _enter(self, sequence: Sequence, place: int) -> None:
        slot = self.size
        if slot == self.items.size:
            self.items = np.concatenate([self.items, np.full(slot, None, object)])
            self.columns = np.concatenate([self.columns, np.zeros_like(self.columns)], axis=1)
        entered, due = self.stamps(sequence)
        self.items[slot] = sequence
        self.columns[:, slot] = (place, sequence.tokens.size, 0.0, entered, due, sequence.tenant)
        self._slots[sequence.id] = slot
        self.size += 1
        self._watch.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        slot = self._slots.pop(sequence.id)
        self.size = last = self.size - 1
        if slot != last:
            moved = self.items[slot] = self.items[last]
            self.columns[:, slot] = self.columns[:, last]
            self._slots[moved.id] = slot
        self.items[last] = None
        self._watch.remove(sequence)

    # -- who is next ------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Bring `cached` up to date. True when it has changed."""
        if self.builder is None:
            return False
        changed = False
        for sequences, cached in self._watch.refresh(self.builder):
            slots = [self._slots[sequence.id] for sequence in sequences]
            if (self.columns[2, slots] != cached).any():
                self.columns[2, slots] = cached
                changed = True
        return changed

    def _ranks(self) -> Floats:
        return np.where(self.place < 0, -np.inf, self.rank())

    def first(self) -> Sequence | None:
        if not self.size:
            return None
        self.refresh()
        ranks = self._ranks()
        best = np.flatnonzero(ranks == ranks.min())
        sequence: Sequence = self.items[best[np.argmin(self.place[best])]]
        return sequence

    def walk(self) -> Iterator[Sequence]:
        """The best of the moment: what one admission puts into the cache may bring others to the front."""
        seen: list[str] = []
        while self.size:
            if self.size == 1 and not seen:
                best = [self.items[0]]  # there is nothing to compare
            else:
                self.refresh()
                best = self._best([self._slots[name] for name in seen if name in self._slots])
            if not best:
                return
            for sequence in best:
                if sequence.id not in self._slots:
                    continue
                seen.append(sequence.id)
                yield sequence
                if self.refresh():
                    break

    def _best(self, without: list[int]) -> list[Sequence]:
        """The first few in order, but for the slots given."""
        ranks = self._ranks()
        ranks[without] = np.inf
        if ranks.size > 4 * _AT_ONCE:
            candidates = np.flatnonzero(ranks <= np.partition(ranks, _AT_ONCE)[_AT_ONCE])
            candidates = candidates[ranks[candidates] < np.inf]
        else:
            candidates = np.flatnonzero(ranks < np.inf)
        order = candidates[np.lexsort((self.place[candidates], ranks[candidates]))]
        best: list[Sequence] = self.items[order].tolist()
        return best

    def __iter__(self) -> Iterator[Sequence]:
        self.refresh()
        order = np.lexsort((self.place, self._ranks()))
        return iter(self.items[order].tolist())

    def __len__(self) -> int:
        return self.size
