"""Turns: some by the length of prompts, then one by arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.core.orders.fcfs import Fcfs
from paceline.core.request import Sequence, SequenceState
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


class Turns(Fcfs):
    """In a short turn fewest prompt tokens first; one that takes several steps' tokens rises by a step's for every
    `patience` seconds it has waited. A turn is a step in which somebody starts. Who was preempted comes before all.

    Sorted when somebody asks after a change: O(n log n).
    """

    def __init__(self, policy: TurnsPolicy) -> None:
        super().__init__()
        self._policy = policy
        self._turn = 0  # of `short_turns` + 1; the last goes by arrival
        self._acted = False  # somebody was started since the last step began
        self._budget = 1  # tokens of a step
        self._now = 0.0
        self._sorted: list[Sequence] | None = None
        self._ages = False  # one of those sorted rises while it waits

    def begin(self, builder: StepBuilder, now: float) -> None:
        self._budget = builder.config.max_num_batched_tokens
        if self._acted:
            self._acted, self._turn, self._sorted = False, (self._turn + 1) % (self._policy.short_turns + 1), None
        if self._ages and now != self._now:
            self._sorted = None
        self._now = now

    def started(self, sequence: Sequence, cached: int) -> None:
        self._acted = True

    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        self._sorted = None

    def resume(self, sequence: Sequence) -> None:
        super().resume(sequence)
        self._sorted = None

    def remove(self, sequence: Sequence) -> None:
        super().remove(sequence)
        self._sorted = None

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        if sequence.state is SequenceState.PREEMPTED:
            return (-(1 << 60), 0)
        tokens = int(sequence.tokens.size)
        steps = -(-tokens // self._budget)
        if steps > 1:
            self._ages = True
            steps -= int((self._now - sequence.submitted) // self._policy.patience)
        return (steps, tokens)

    def __iter__(self) -> Iterator[Sequence]:
        if self._turn == self._policy.short_turns:
            return super().__iter__()
        if self._sorted is None:
            self._ages = False
            self._sorted = sorted(super().__iter__(), key=self._rank)
        return iter(self._sorted)

    def first(self) -> Sequence | None:
        return next(iter(self), None)

    def walk(self) -> Iterator[Sequence]:
        """As it is now; whoever has left meanwhile is passed over."""
        for sequence in list(self):
            if sequence.id in self._queue:
                yield sequence


@dataclass(frozen=True)
class TurnsPolicy:
    """Shortest prompts first in `short_turns` of every `short_turns` + 1 steps that start somebody, else by arrival.

    After LMDeploy's PyTorch engine. `patience`: seconds of waiting for which a prompt longer than a step's tokens
    counts as one such step shorter.
    """

    bound: ClassVar[str] = "guard: after `short_turns` steps that start somebody, one goes by arrival"
    short_turns: int = 3
    patience: float = 2.0

    def __post_init__(self) -> None:
        if self.short_turns < 0:
            raise ConfigError("short_turns", self.short_turns, "a whole number of at least 0")
        if not 0.0 < self.patience < float("inf"):
            raise ConfigError("patience", self.patience, "a number of seconds above 0")

    def queue(self) -> Turns:
        return Turns(self)
