"""Depth-first over the tree of waiting prompts."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

from paceline.core.orders.cache_aware import CacheAwareKnobs, WorkClock, behind_leader
from paceline.core.orders.heap import without_dead
from paceline.core.request import Sequence

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder
    from paceline.kv.interface import Match

Key = tuple[bytes, bytes, int]


class DepthFirst:
    """Prompts in the order of their tokens, from the one admitted last onwards and round again.

    Sorted prompts are their radix tree read depth-first, so all that share a prefix follow one another, and the order
    does not depend on what is cached: nothing is ever matched for it. SGLang's dfs-weight walks the cache's tree and
    takes the branch with most waiting first; this one goes round. Preempted and overdue ones come before all others.
    O(log n) comparisons of prompts to add, O(1) to remove.
    """

    def __init__(self, policy: DepthFirstPolicy) -> None:
        self.builder: StepBuilder | None = None
        self.clock = WorkClock(policy)
        self.hold = self._hold if policy.leaders else None
        self._first: OrderedDict[str, Sequence] = OrderedDict()  # preempted or overdue
        self._sorted: list[Key] = []  # with entries of those who left, until there are too many
        self._stamps: dict[str, int] = {}  # sequence id -> stamp of its entry
        self._live: dict[int, Sequence] = {}  # by stamp
        self._stamp = 0
        self._due: list[tuple[float, int, Sequence]] = []
        self._at: Key = (b"", b"", -1)  # of the one admitted last

    def attach(self, builder: StepBuilder) -> None:
        self.builder = builder

    def _move_overdue(self) -> None:
        while self._due and self._due[0][0] <= self.clock.time:
            sequence = heappop(self._due)[2]
            if sequence.id in self._stamps:
                self._take_out(sequence)
                self._first[sequence.id] = sequence

    def _hold(self, sequence: Sequence, match: Match) -> str | None:
        return behind_leader(self.builder, sequence, match) if self.builder is not None else None

    def _key(self, sequence: Sequence) -> Key:
        if sequence.key is None:
            sequence.key = sequence.tokens.tobytes()
        return (sequence.namespace, sequence.key, self._stamp)

    def add(self, sequence: Sequence) -> None:
        due = self.clock.enter(sequence)
        if due < float("inf"):
            heappush(self._due, (due, sequence.number, sequence))
        self._stamp += 1
        insort(self._sorted, self._key(sequence))
        self._stamps[sequence.id] = self._stamp
        self._live[self._stamp] = sequence

    def resume(self, sequence: Sequence) -> None:
        self.clock.enter(sequence)
        self._first[sequence.id] = sequence
        self._first.move_to_end(sequence.id, last=False)

    def remove(self, sequence: Sequence) -> None:
        if self._first.pop(sequence.id, None) is None:
            self._take_out(sequence)
        self.clock.leave(sequence)
        self._due = without_dead(self._due, len(self), lambda other: other.id in self._stamps)

    def _take_out(self, sequence: Sequence) -> None:
        del self._live[self._stamps.pop(sequence.id)]
        if len(self._sorted) > 2 * len(self._live) + 64:
            self._sorted = [key for key in self._sorted if key[2] in self._live]

    def started(self, sequence: Sequence, cached: int) -> None:
        self.clock.started(sequence, cached)
        self._at = self._key(sequence)

    def first(self) -> Sequence | None:
        return next(iter(self), None)

    def walk(self) -> Iterator[Sequence]:
        return iter(list(self))

    def __iter__(self) -> Iterator[Sequence]:
        self._move_overdue()
        yield from self._first.values()
        turn = bisect_left(self._sorted, self._at)
        for part in (slice(turn, None), slice(0, turn)):
            for key in self._sorted[part]:
                if (sequence := self._live.get(key[2])) is not None:
                    yield sequence

    def __len__(self) -> int:
        return len(self._first) + len(self._live)


@dataclass(frozen=True)
class DepthFirstPolicy(CacheAwareKnobs):
    """Depth-first over the waiting prompts, so that shared prefixes are computed once (RadixAttention's theorem)."""

    bound: ClassVar[str] = (
        "aging: overdue after `stretch` times the tokens it found waiting and `patience` more; then only those overdue "
        "before it go first"
    )

    def queue(self) -> DepthFirst:
        return DepthFirst(self)
