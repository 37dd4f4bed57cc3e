"""Every step, the best by the order run, whether they ran before or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.displacement import give_way
from paceline.core.orders import ORDERS
from paceline.core.phases import by_phase
from paceline.core.request import Sequence, SequenceState
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.discipline import Discipline
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class Reselect:
    """Running and waiting sequences in one order, from the first on while rows, blocks and tokens last.

    A waiting one that finds no row or no blocks takes them from running ones that come after it, the last of them
    first, and only when it can then start. After vllm-ltr's srtf and real-time scheduling. The order must rank running
    sequences as well: it has a `key`. Beside others, nobody starts for the first time while less than `host_reserve` of
    the host blocks are there for who is swapped out (after FastServe).
    """

    host_reserve: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.host_reserve <= 1.0:
            raise ConfigError("host_reserve", self.host_reserve, "a share of the host blocks from 0 to 1")

    def check(self, config: SchedulerConfig, discipline: Discipline) -> None:
        if not hasattr(discipline.policy.queue(), "key"):
            able = [name for name, policy in ORDERS.items() if hasattr(policy.queue(), "key")]
            raise ConfigError("--order", discipline.order, f"one that can rank running sequences: {', '.join(able)}")

    def compose(self, builder: StepBuilder, step: Step) -> None:
        if not len(builder.waiting):
            builder.run(step, np.concatenate(by_phase(builder.batch, builder.batch.order)))
        else:
            self._merge(builder, step)
        if (ran := getattr(builder.waiting, "ran", None)) is not None:
            ran(builder.batch.occupant[np.asarray(step.rows, np.intp)].tolist())

    def _merge(self, builder: StepBuilder, step: Step) -> None:
        batch = builder.batch
        key: Callable[[Sequence], Any] = builder.waiting.key  # type: ignore[attr-defined]
        running = sorted(
            ((key(sequence), sequence) for sequence in batch.occupant[batch.order]), key=lambda one: one[0]
        )
        waiting = [(key(sequence), sequence) for sequence in builder.waiting]
        at = 0
        for rank, sequence in waiting:
            if self._held_back(builder, sequence):
                step.tried[sequence.id] = "host: too few blocks are free to start others who may have to be swapped out"
                continue
            ahead = at
            while at < len(running) and running[at][0] < rank:
                at += 1
            self._run(builder, step, [one for _, one in running[ahead:at]])
            if not self._start(builder, step, sequence, [one for _, one in running[at:]]):
                break
        self._run(builder, step, [one for _, one in running[at:]])

    def _held_back(self, builder: StepBuilder, sequence: Sequence) -> bool:
        reserve = self.host_reserve * builder.config.num_host_blocks
        fresh = sequence.state is SequenceState.WAITING
        return fresh and builder.tiers.available < reserve and len(builder.batch) > 0

    def _run(self, builder: StepBuilder, step: Step, sequences: list[Sequence]) -> None:
        rows = [sequence.row for sequence in sequences if sequence.row >= 0]  # the others were preempted meanwhile
        if rows:
            builder.run(step, np.array(rows, np.int32))

    def _start(self, builder: StepBuilder, step: Step, sequence: Sequence, after: list[Sequence]) -> bool:
        """Admit it, preempting from the end of those `after` it. False when it cannot start."""
        after = [other for other in after if other.row >= 0 and not builder.protected(other.row)]
        if sequence in (preempted for preempted, _ in step.preempted):
            return False
        while (reason := builder.try_admit(step, sequence)) is not None:
            short_of_room = step.budget > 0 and reason.startswith(("slots", "KV"))
            if not short_of_room or not after or not self._would_fit(builder, sequence, after):
                if step.blocked[0] is None:
                    step.blocked = (sequence, reason)
                return False
            give_way(builder, step, after.pop(), reason.startswith("KV"))
        return True

    def _would_fit(self, builder: StepBuilder, sequence: Sequence, after: list[Sequence]) -> bool:
        batch = builder.batch
        held = int(batch.held[[other.row for other in after]].sum())
        return -(-int(sequence.tokens.size) // batch.block_size) <= builder.kv.available + held
