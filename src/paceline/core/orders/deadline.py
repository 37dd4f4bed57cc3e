"""Earliest deadline first, or least slack."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.core.orders.heap import HeapQueue, without_dead
from paceline.core.request import Sequence
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder

OVERDUE, TIMELY, LATE = 0, 1, 2


class EarliestDeadline(HeapQueue):
    """By the deadline of the next token: arrival + TTFT target + tokens so far * TPOT target.

    Who is early does not earn an earlier next deadline. Whoever misses one moves behind all who can still keep theirs:
    otherwise, under overload, the hopeless would make everybody late. The wait behind them ends after `patience`.
    """

    def __init__(self, policy: DeadlinePolicy) -> None:
        super().__init__()
        self._policy = policy
        self._builder: StepBuilder | None = None
        self._now = float("-inf")
        self._due: list[tuple[float, int, Sequence]] = []  # when a waiting sequence may change its class

    def begin(self, builder: StepBuilder, now: float) -> None:
        self._builder, self._now = builder, now
        while self._due and self._due[0][0] <= now:
            sequence = heappop(self._due)[2]
            if sequence in self:
                self.rekey(sequence)

    def add(self, sequence: Sequence) -> None:
        for when in (self.deadline(sequence), sequence.submitted + self._policy.patience):
            heappush(self._due, (when, sequence.number, sequence))
        super().add(sequence)

    def remove(self, sequence: Sequence) -> None:
        super().remove(sequence)
        self._due = without_dead(self._due, len(self), self.__contains__)

    def deadline(self, sequence: Sequence) -> float:
        """When its next token is due, in seconds on the caller's clock."""
        request, policy = sequence.request, self._policy
        first = policy.default_ttft if request.ttft_target is None else request.ttft_target
        each = policy.default_tpot if request.tpot_target is None else request.tpot_target
        running = sequence.row >= 0 and self._builder is not None
        known = self._builder.batch.length[sequence.row] if running and self._builder else sequence.tokens.size
        return sequence.submitted + first + (int(known) - sequence.prompt_length) * each

    def key(self, sequence: Sequence) -> tuple[Any, ...]:
        if self._now >= sequence.submitted + self._policy.patience:
            return (OVERDUE, 0.0, sequence.number)
        deadline = self.deadline(sequence)
        if self._now >= deadline:
            return (LATE, 0.0, sequence.number)
        return (TIMELY, deadline - self._policy.seconds_per_token * int(sequence.tokens.size), sequence.number)


@dataclass(frozen=True)
class DeadlinePolicy:
    """Earliest deadline first. Targets are the requests' own, else the defaults here, in seconds.

    With `seconds_per_token` above 0, least slack first: a prompt's length times it comes off its deadline.
    """

    bound: ClassVar[str] = "aging: once it has waited `patience` seconds, it goes before all who came later"
    default_ttft: float = 10.0
    default_tpot: float = 0.5
    patience: float = 60.0
    seconds_per_token: float = 0.0

    def __post_init__(self) -> None:
        for name in ("default_ttft", "default_tpot", "patience", "seconds_per_token"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ConfigError(name, getattr(self, name), "a number of seconds of at least 0")

    def queue(self) -> EarliestDeadline:
        return EarliestDeadline(self)
