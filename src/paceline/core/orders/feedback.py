"""Multi-level feedback queue with skip-join."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from paceline.core.orders.heap import HeapQueue, without_dead
from paceline.core.request import RowArray, Sequence
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.batch import Batch
    from paceline.core.step_builder import StepBuilder


class _Rank:
    """Where one sequence stands."""

    __slots__ = ("last", "level", "place", "row", "used")

    def __init__(self, level: int, place: int, last: float) -> None:
        self.level = level
        self.place = place  # within the level, smaller first
        self.used = 0.0  # seconds it was in steps since it came to this level
        self.last = last  # when it was last in a step, or came
        self.row = -1  # while it has one, `used` and `last` are in the columns


class Feedback(HeapQueue):
    """Levels 0, 1, ... with quanta `base`, `base * ratio`, ...: who has used more than its level's goes one down.

    A sequence joins at the first level whose quantum covers its prompt. A step's seconds, from its `begin` to the next,
    are used by everybody in it. Nobody goes down, or yields to others, between coming to run and its next token: so
    each turn gives one at least.
    """

    def __init__(self, policy: FeedbackPolicy) -> None:
        super().__init__()
        self._policy = policy
        self._quanta = [policy.base * policy.ratio**level for level in range(policy.levels)]
        self._ranks: dict[str, _Rank] = {}
        self._due: list[tuple[float, int, Sequence]] = []  # when a waiting sequence has been out of steps for too long
        self._places = 0
        self._now = 0.0
        # Columns [rows], made with the first step:
        self._begun: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)  # no token since it came to this row
        self._used = self._last = self._quantum = np.zeros(0)  # seconds

    def begin(self, builder: StepBuilder, now: float) -> None:
        if not self._begun.size:
            rows = builder.config.max_num_seqs
            self._begun = np.zeros(rows, np.bool_)
            self._used, self._last, self._quantum = np.zeros(rows), np.zeros(rows), np.zeros(rows)
        seconds, self._now = now - self._now, now
        step = builder.step
        if step is not None and len(step.rows):
            in_step = np.asarray(step.rows, np.intp)
            self._used[in_step] += seconds
            self._last[in_step] = now
            sinks = in_step[(self._used[in_step] > self._quantum[in_step]) & ~self._begun[in_step]]
            for sequence in builder.batch.occupant[sinks].tolist():
                if sequence is not None:
                    self._sink(self._ranks[sequence.id])
        while self._due and self._due[0][0] <= now:
            sequence = heappop(self._due)[2]
            if sequence not in self:
                continue
            rank = self._ranks[sequence.id]
            if rank.last + self._policy.promote_after <= now:
                rank.level, rank.used, rank.place, rank.last = 0, 0.0, self._place(self._policy.promote_to_front), now
                self.rekey(sequence)
            self._watch(sequence)

    def started(self, sequence: Sequence, cached: int) -> None:
        rank, row = self._ranks[sequence.id], sequence.row
        rank.row = row
        self._begun[row] = True
        self._used[row], self._last[row], self._quantum[row] = rank.used, rank.last, self._limit(rank.level)

    def generated(self, batch: Batch, rows: RowArray) -> None:
        self._begun[rows] = False

    def _limit(self, level: int) -> float:
        """Seconds after which one goes a level down; from the last level nobody does."""
        return self._quanta[level] if level + 1 < len(self._quanta) else float("inf")

    def _sink(self, rank: _Rank) -> None:
        rank.level, rank.place = rank.level + 1, self._place(self._policy.demote_to_front)
        self._used[rank.row], self._quantum[rank.row] = 0.0, self._limit(rank.level)

    def _place(self, front: bool) -> int:
        self._places += 1
        return -self._places if front else self._places

    def _watch(self, sequence: Sequence) -> None:
        if self._policy.promote_after:
            due = self._ranks[sequence.id].last + self._policy.promote_after
            heappush(self._due, (due, sequence.number, sequence))

    def add(self, sequence: Sequence) -> None:
        if sequence.id not in self._ranks:
            work = int(sequence.tokens.size) * self._policy.seconds_per_token
            level = next((i for i, quantum in enumerate(self._quanta) if quantum >= work), len(self._quanta) - 1)
            self._ranks[sequence.id] = _Rank(level, self._place(front=False), self._now)
        rank = self._ranks[sequence.id]
        if rank.row >= 0:  # it comes back
            rank.used, rank.last, rank.row = float(self._used[rank.row]), float(self._last[rank.row]), -1
        self._watch(sequence)
        super().add(sequence)

    def remove(self, sequence: Sequence) -> None:
        super().remove(sequence)
        self._due = without_dead(self._due, len(self), self.__contains__)

    def ended(self, sequence: Sequence) -> None:
        self._ranks.pop(sequence.id, None)

    def rung(self, sequence: Sequence) -> int:
        """The level a live sequence is on, 0 the first."""
        return self._ranks[sequence.id].level

    def key(self, sequence: Sequence) -> tuple[Any, ...]:
        rank = self._ranks[sequence.id]
        begun = 0 <= sequence.row < self._begun.size and self._begun[sequence.row]
        return (-1 if begun else rank.level, rank.place)


@dataclass(frozen=True)
class FeedbackPolicy:
    """Skip-join multi-level feedback queue, after FastServe.

    `base`, `ratio`, `levels`: quanta in seconds. `seconds_per_token`: what a prompt token takes, for the level to join.
    `demote_to_front`, `promote_to_front`: who changes level becomes its first (FastServe's published code), else its
    last. Promotion to the front undoes turns that have begun: it wants preemption by swap or hold.
    """

    bound: ClassVar[str] = "guard: who was in no step for `promote_after` seconds comes to level 0, behind those there"
    base: float = 0.01
    ratio: float = 2.0
    levels: int = 12
    seconds_per_token: float = 0.0001
    promote_after: float = 3.0
    demote_to_front: bool = False
    promote_to_front: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.base < float("inf"):
            raise ConfigError("base", self.base, "a number of seconds above 0")
        if not 1.0 <= self.ratio <= 1000.0:
            raise ConfigError("ratio", self.ratio, "a number from 1 to 1000")
        if not 1 <= self.levels <= 64:
            raise ConfigError("levels", self.levels, "a whole number from 1 to 64")
        for name in ("seconds_per_token", "promote_after"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ConfigError(name, getattr(self, name), "a number of seconds of at least 0")

    def queue(self) -> Feedback:
        return Feedback(self)
