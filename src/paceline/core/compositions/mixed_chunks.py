"""Decodes and prompt chunks in one step, within one token budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class MixedChunks:
    """Running rows first, then waiting ones, all within one token budget; prompts are cut to what is left of it.

    `decode_first` serves every row that needs one token before any unfinished prompt (after Sarathi-Serve);
    otherwise rows come in order of admission (after vLLM V1). In a step that preempts, nobody is admitted.
    """

    decode_first: bool = True

    def compose(self, builder: StepBuilder, step: Step) -> None:
        batch = builder.batch
        rows = batch.order
        if self.decode_first and rows.size:
            prefilling = batch.length[rows] - batch.computed[rows] > 1
            if prefilling.any():
                rows = np.concatenate([rows[~prefilling], rows[prefilling]])
        builder.run(step, rows)
        if not step.preempted:
            builder.admit(step)
