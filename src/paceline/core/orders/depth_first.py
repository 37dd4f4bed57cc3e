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
    O(log n) comparisons of prompts to add and remove.
    """

    def __init__(self, policy: DepthFirstPolicy) -> None:
        self.builder: StepBuilder | None = None
        self.clock = WorkClock(policy)
        self.hold = self._hold if policy.leaders else None
        self._first: OrderedDict[str, Sequence] = OrderedDict()  # preempted or overdue
        self._sorted: list[Key] = []
        self._by_number: dict[int, Sequence] = {}
        self._due: list[tuple[float, int, Sequence]] = []
        self._at: Key = (b"", b"", -1)  # of the one admitted last

    def begin(self, builder: StepBuilder, now: float) -> None:
        self.builder = builder
        while self._due and self._due[0][0] <= self.clock.time:
            sequence = heappop(self._due)[2]
            if sequence.number in self._by_number:
                self._take_out(sequence)
                self._first[sequence.id] = sequence

    def _hold(self, sequence: Sequence, match: Match) -> str | None:
        return behind_leader(self.builder, sequence, match) if self.builder is not None else None

    @staticmethod
    def _key(sequence: Sequence) -> Key:
        if sequence.key is None:
            sequence.key = sequence.tokens.tobytes()
        return (sequence.namespace, sequence.key, sequence.number)

    def add(self, sequence: Sequence) -> None:
        due = self.clock.enter(sequence)
        if due < float("inf"):
            heappush(self._due, (due, sequence.number, sequence))
        insort(self._sorted, self._key(sequence))
        self._by_number[sequence.number] = sequence

    def resume(self, sequence: Sequence) -> None:
        self.clock.enter(sequence)
        self._first[sequence.id] = sequence
        self._first.move_to_end(sequence.id, last=False)

    def remove(self, sequence: Sequence) -> None:
        if self._first.pop(sequence.id, None) is None:
            self._take_out(sequence)
        self.clock.leave(sequence)
        self._due = without_dead(self._due, len(self), lambda other: other.number in self._by_number)

    def _take_out(self, sequence: Sequence) -> None:
        del self._by_number[sequence.number]
        del self._sorted[bisect_left(self._sorted, self._key(sequence))]

    def started(self, sequence: Sequence, cached: int) -> None:
        self.clock.started(sequence, cached)
        self._at = self._key(sequence)

    def first(self) -> Sequence | None:
        return next(iter(self), None)

    def walk(self) -> Iterator[Sequence]:
        return iter(list(self))

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._first.values()
        turn = bisect_left(self._sorted, self._at)
        for part in (slice(turn, None), slice(0, turn)):
            for key in self._sorted[part]:
                yield self._by_number[key[2]]

    def __len__(self) -> int:
        return len(self._first) + len(self._sorted)


@dataclass(frozen=True)
class DepthFirstPolicy(CacheAwareKnobs):
    """Depth-first over the waiting prompts, so that shared prefixes are computed once (RadixAttention's theorem)."""

    bound: ClassVar[str] = (
        "aging: overdue after `stretch` times the tokens it found waiting and `patience` more; then only those overdue "
        "before it go first"
    )

    def queue(self) -> DepthFirst:
        return DepthFirst(self)
