"""Shortest job first, by a prediction of the output's length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.core.orders.heap import HeapQueue, without_dead
from paceline.core.predictors import PREDICTORS, predictor
from paceline.core.request import Sequence
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


class Shortest(HeapQueue):
    """Fewest expected tokens first: in all, or those still to come.

    Starvation guard after vllm-ltr: who was not in the step for `guard` steps on end goes before those who were, in
    order of arrival, until it has been in `turns` steps.
    """

    def __init__(self, policy: ShortestPolicy, remaining: bool) -> None:
        super().__init__()
        self._predictor = predictor(policy.predictor)
        self._guard, self._turns = policy.guard, policy.turns
        self._remaining = remaining
        self._builder: StepBuilder | None = None
        self._step = -1
        self._last: dict[str, int] = {}  # sequence id -> the step it was last in; at first, the last before it came
        self._promoted: dict[str, int] = {}  # sequence id -> turns left
        self._expected: dict[str, float] = {}
        self._due: list[tuple[int, int, Sequence]] = []  # one entry for each sequence: when to look at it

    def begin(self, builder: StepBuilder, now: float) -> None:
        self._builder = builder
        self._step += 1
        while self._due and self._due[0][0] <= self._step:
            sequence = heappop(self._due)[2]
            if sequence.id not in self._last:
                continue
            due = self._last[sequence.id] + self._guard + 1
            if due <= self._step:
                if sequence.id not in self._promoted:
                    self._promoted[sequence.id] = self._turns
                    if sequence in self:
                        self.rekey(sequence)
                due = self._step + self._guard
            heappush(self._due, (due, sequence.number, sequence))

    def add(self, sequence: Sequence) -> None:
        if sequence.id not in self._expected:
            self._expected[sequence.id] = self._predictor.predict(sequence)
            self._last[sequence.id] = self._step
            if self._guard:
                heappush(self._due, (self._step + self._guard + 1, sequence.number, sequence))
        super().add(sequence)

    def started(self, sequence: Sequence, cached: int) -> None:
        self._last[sequence.id] = self._step

    def ran(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._last[sequence.id] = self._step
            turns = self._promoted.get(sequence.id)
            if turns is not None:
                self._promoted[sequence.id] = turns - 1
                if turns == 1:
                    del self._promoted[sequence.id]

    def ended(self, sequence: Sequence) -> None:
        self._predictor.finished(sequence)
        for of_each in (self._last, self._promoted, self._expected):
            of_each.pop(sequence.id, None)
        self._due = without_dead(self._due, len(self._last), lambda other: other.id in self._last)

    def key(self, sequence: Sequence) -> tuple[Any, ...]:
        if sequence.id in self._promoted:
            return (0, 0.0, sequence.number)
        expected = self._expected[sequence.id]
        if self._remaining:
            running = sequence.row >= 0 and self._builder is not None
            known = self._builder.batch.length[sequence.row] if running and self._builder else sequence.tokens.size
            expected = max(expected - int(known) + sequence.prompt_length, 1.0)
        return (1, expected, sequence.number)


@dataclass(frozen=True)
class ShortestPolicy:
    """Shortest job first. `predictor`: max-tokens, hint, tenant-mean or oracle; `guard` 0: none."""

    bound: ClassVar[str] = (
        "guard: once it has been out of `guard` steps on end it goes before all who have not; without: unbounded"
    )
    predictor: str = "hint"
    guard: int = 1024
    turns: int = 32

    def __post_init__(self) -> None:
        if self.predictor not in PREDICTORS:
            raise ConfigError("predictor", self.predictor, "one of " + ", ".join(PREDICTORS))
        if self.guard < 0:
            raise ConfigError("guard", self.guard, "a whole number of steps of at least 0")
        if self.turns < 1:
            raise ConfigError("turns", self.turns, "a whole number of steps of at least 1")

    def queue(self) -> Shortest:
        return Shortest(self, remaining=False)


@dataclass(frozen=True)
class ShortestRemainingPolicy(ShortestPolicy):
    """Shortest remaining time first. Preempts running sequences only where the composition does."""

    def queue(self) -> Shortest:
        return Shortest(self, remaining=True)
