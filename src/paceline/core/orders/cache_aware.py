"""What the orders that prefer cached prompts have in common: leaders, and a bound on being overtaken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.orders.ranked import Floats, RankedQueue
from paceline.core.request import Sequence
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder
    from paceline.kv.interface import Match

_FIRST = 1e15  # far before any rank


@dataclass(frozen=True)
class CacheAwareKnobs:
    """Knobs of every cache-aware order.

    - `leaders`: while a running prompt is about to compute the block that comes next in a waiting one as well, the
      waiting one lets it, and follows. (A prompt that is scheduled whole is found by others in the same step.)
    - `stretch`, `patience`: once others' prompts have taken `stretch` times the tokens that were in the queue when
      it came, and `patience` more, a sequence is overdue: it goes before all who are not. `stretch` 0: never.
    """

    leaders: bool = True
    stretch: float = 4.0
    patience: int = 65536

    def __post_init__(self) -> None:
        if not 0.0 <= self.stretch < float("inf"):
            raise ConfigError("stretch", self.stretch, "a number of at least 0")
        if self.patience < 0:
            raise ConfigError("patience", self.patience, "a whole number of tokens of at least 0")


class WorkClock:
    """Counts the prompt tokens that were started, and says by it when one that waits is overdue."""

    def __init__(self, knobs: CacheAwareKnobs) -> None:
        self._knobs = knobs
        self.time = 0.0
        self._ahead = 0.0

    def enter(self, sequence: Sequence) -> float:
        """When it is overdue if it comes now."""
        self._ahead += int(sequence.tokens.size)
        if not self._knobs.stretch:
            return float("inf")
        return self.time + self._knobs.stretch * self._ahead + self._knobs.patience

    def leave(self, sequence: Sequence) -> None:
        self._ahead -= int(sequence.tokens.size)

    def started(self, sequence: Sequence, cached: int) -> None:
        self.time += int(sequence.tokens.size) - cached


def behind_leader(builder: StepBuilder, sequence: Sequence, match: Match) -> str | None:
    """Whom it should follow, in words: who computes next what it needs next."""
    if sequence.kept_tokens or sequence.leader is not None or sequence.request.params.prompt_logprobs is not None:
        return None
    batch, size = builder.batch, builder.config.block_size
    end = (len(match.blocks) + 1) * size
    if end >= sequence.tokens.size or not builder.config.enable_prefix_caching:
        return None
    rows = batch.order
    rows = rows[batch.computed.take(rows) < end]
    if rows.size:
        rows = rows[batch.length.take(rows) >= end]
    for row in rows.tolist():
        other = batch.occupant[row]
        if other.namespace == sequence.namespace and np.array_equal(batch.tokens[row, :end], sequence.tokens[:end]):
            return f"prefix: {other.id} computes the next {size} tokens of it"
    return None


class CacheAware(RankedQueue):
    """Adds leaders and the bound to a rank by what is cached."""

    def __init__(self, knobs: CacheAwareKnobs) -> None:
        super().__init__()
        self.clock = WorkClock(knobs)
        self.hold = self._hold if knobs.leaders else None

    def _hold(self, sequence: Sequence, match: Match) -> str | None:
        return behind_leader(self.builder, sequence, match) if self.builder is not None else None

    def stamps(self, sequence: Sequence) -> tuple[float, float]:
        return self.clock.time, self.clock.enter(sequence)

    def remove(self, sequence: Sequence) -> None:
        super().remove(sequence)
        self.clock.leave(sequence)

    def started(self, sequence: Sequence, cached: int) -> None:
        self.clock.started(sequence, cached)

    def _ranks(self) -> Floats:
        overdue = self.clock.time >= self.due
        ranks = np.where(overdue, self.due - _FIRST, self.rank())
        return np.where(self.place < 0, -np.inf, ranks)
