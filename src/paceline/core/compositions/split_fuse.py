"""Dynamic SplitFuse: decodes, then prompts split and packed so that every step has about the same number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.phases import by_phase
from paceline.core.request import RowArray

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class SplitFuse:
    """Decodes that have room or find a free block; then prompts, cut to what is left, whose whole rest fits.

    After DeepSpeed-FastGen. A decode without room is skipped and keeps its KV; next time it comes before those that
    ran. When nobody can run, the last decode is preempted, in a step without a forward, and waits behind everybody.
    Goes with the eviction `Skipped`.
    """

    def compose(self, builder: StepBuilder, step: Step) -> None:
        batch = builder.batch
        decodes, prompts = by_phase(batch, batch.order)
        builder.run(step, decodes)
        if len(step.rows) < decodes.size:
            self._skipped_first(builder, step, decodes)
        if self._split(builder, step, prompts):
            builder.admit(step)
        else:
            step.closed = "behind a prompt whose rest does not fit in the free KV blocks"
        if not len(step.rows) and len(batch):
            last = decodes[-1] if decodes.size else prompts[-1]
            builder.preempt(step, batch.occupant[last])

    @staticmethod
    def _skipped_first(builder: StepBuilder, step: Step, decodes: RowArray) -> None:
        """Those that ran go behind those that were skipped, as in a queue that is taken from one end."""
        batch = builder.batch
        ran = np.isin(batch.order, np.asarray(step.rows, np.int32))
        batch.order = np.concatenate([batch.order[~ran], batch.order[ran]])

    @staticmethod
    def _split(builder: StepBuilder, step: Step, prompts: RowArray) -> bool:
        """The next parts of unfinished prompts. False when the rest of one does not fit."""
        batch = builder.batch
        for index in range(prompts.size):
            row = prompts[index]
            if -(-int(batch.length[row]) // batch.block_size) - int(batch.held[row]) > builder.kv.available:
                return False
            builder.run(step, prompts[index : index + 1])
        return True
