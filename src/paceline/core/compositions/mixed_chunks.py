"""Decodes and prompt chunks in one step, within one token budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class MixedChunks:
    """Running rows first, then waiting ones, all within one token budget; prompts are cut to what is left of it.

    `decode_first` serves every row that needs one token before any unfinished prompt (after Sarathi-Serve);
    otherwise rows come in order of admission (after vLLM V1). In a step that preempts, nobody is admitted.
    `buckets`: prompts that start in one step have about the same length to compute: all lie between the same two of
    these numbers of tokens, as the first of them does. Who is next in the queue is never put off by this.
    """

    decode_first: bool = True
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rising = all(type(size) is int and size > 0 for size in self.buckets) and (
            list(self.buckets) == sorted(set(self.buckets))
        )
        if not rising:
            raise ConfigError("buckets", self.buckets, "rising numbers of tokens, all above 0")

    def compose(self, builder: StepBuilder, step: Step) -> None:
        batch = builder.batch
        rows = batch.order
        if self.decode_first and rows.size:
            prefilling = batch.length[rows] - batch.computed[rows] > 1
            if prefilling.any():
                rows = np.concatenate([rows[~prefilling], rows[prefilling]])
        builder.run(step, rows)
        if not step.preempted:
            step.sizes = self.buckets
            builder.admit(step)
