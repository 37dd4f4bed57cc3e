"""By priority, smaller first, as vLLM orders its waiting queue; with aging on request."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.core.orders.heap import HeapQueue, without_dead
from paceline.core.request import Sequence
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


class Priority(HeapQueue):
    """Smaller priority first, then earlier arrival, then request id; a preempted sequence keeps its place."""

    def level(self, sequence: Sequence) -> int:
        """Waiting or running; smaller is sooner."""
        return sequence.priority

    def key(self, sequence: Sequence) -> tuple[Any, ...]:
        return (self.level(sequence), sequence.arrival, sequence.id)


class AgingPriority(Priority):
    """As `Priority`, of `level - floor(waited / age)`, down to 0.

    A clock is read once a step: a sequence whose level changes has an entry in a heap of times.
    """

    def __init__(self, age: float) -> None:
        super().__init__()
        self._age = age
        self._now = 0.0
        self._due: list[tuple[float, int, Sequence]] = []  # when a waiting sequence rises
        self._rise: dict[str, int] = {}  # sequence id -> levels it has risen

    def begin(self, builder: StepBuilder, now: float) -> None:
        self._now = now
        while self._due and self._due[0][0] <= now:
            sequence = heappop(self._due)[2]
            if sequence.id not in self._rise:
                continue
            self._rise[sequence.id] += 1
            if sequence in self:
                self.rekey(sequence)
            self._wind(sequence)

    def add(self, sequence: Sequence) -> None:
        if sequence.id not in self._rise:
            self._rise[sequence.id] = 0
            self._wind(sequence)
        super().add(sequence)

    def ended(self, sequence: Sequence) -> None:
        self._rise.pop(sequence.id, None)
        self._due = without_dead(self._due, len(self._rise), lambda other: other.id in self._rise)

    def _wind(self, sequence: Sequence) -> None:
        rise = self._rise[sequence.id] + 1
        if sequence.priority >= rise:
            heappush(self._due, (sequence.submitted + rise * self._age, sequence.number, sequence))

    def level(self, sequence: Sequence) -> int:
        return sequence.priority - self._rise.get(sequence.id, 0)


@dataclass(frozen=True)
class PriorityPolicy:
    """Smaller priority first, after vLLM. `age`: seconds of waiting that are worth one level, down to 0; 0: off."""

    bound: ClassVar[str] = (
        "aging: with `age`, one of level L is before all that come later once it has waited L * age seconds, unless "
        "their level is below 0; without: unbounded: the original's behaviour"
    )
    age: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.age < float("inf"):
            raise ConfigError("age", self.age, "a number of seconds of at least 0")

    def queue(self) -> Priority:
        return AgingPriority(self.age) if self.age else Priority()
