"""All that run, oldest first, whatever they are at; who finds no blocks waits in its place and keeps its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.phases import by_arrival

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class OldestFirst:
    """Running sequences by arrival, then waiting ones, until one finds no blocks or the token budget is used up.

    After LMDeploy's TurboMind. A part that does not end a prompt ends at a block's edge. In a step in which blocks were
    taken from somebody, or somebody found none, nobody starts. Goes with the eviction `NewerThan`.
    """

    def compose(self, builder: StepBuilder, step: Step) -> None:
        batch = builder.batch
        rows = by_arrival(batch, batch.order)
        counts = batch.length[rows] - batch.computed[rows]
        if step.chunk_limit:
            counts = np.minimum(counts, step.chunk_limit)
        whole = int(np.searchsorted(np.cumsum(counts), step.budget, side="right"))
        builder.run(step, rows[:whole])
        if len(step.rows) < whole or step.preempted or not self._parts(builder, step, rows[whole:].tolist()):
            step.closed = "KV: a running sequence found no free blocks, so nobody starts"
            return
        unit = self._unit(builder, step)
        for sequence in builder.candidates(step):
            if (reason := builder.try_admit(step, sequence, None, unit)) is not None:
                if step.blocked[0] is None:
                    step.blocked = (sequence, reason)
                return

    @staticmethod
    def _unit(builder: StepBuilder, step: Step) -> int:
        """Where prompts are cut; never above what one may get in a step, which would leave it without a part."""
        unit = min(builder.config.block_size, builder.config.max_num_batched_tokens)
        return min(unit, step.chunk_limit) if step.chunk_limit else unit

    def _parts(self, builder: StepBuilder, step: Step, rows: list[int]) -> bool:
        """What is left of the budget for those that cannot have all they want. False when blocks are short."""
        batch, unit = builder.batch, self._unit(builder, step)
        for row in rows:
            if step.budget <= 0:
                break
            start, wanted = int(batch.computed[row]), int(batch.length[row] - batch.computed[row])
            count = min(wanted, step.chunk_limit or wanted, step.budget)
            if count < wanted:
                count -= (start + count) % unit
            if count <= 0:
                continue
            if not builder.make_room(step, row, count):
                return False
            builder.extend(step, row, count)
            if step.preempted:
                return False
        return True
