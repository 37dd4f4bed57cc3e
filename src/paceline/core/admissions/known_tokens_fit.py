"""Admit when the tokens known so far fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.request import RowArray, Sequence
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class Growing:
    """A count that holds for one step, until a row is taken or a block is."""

    step: Step | None
    rows: RowArray
    available: int
    blocks: int

    def holds(self, builder: StepBuilder) -> bool:
        same = self.step is builder.step and self.rows is builder.batch.order
        return same and self.available == builder.kv.available


@dataclass(frozen=True)
class KnownTokensFit:
    """The blocks of this step must be there, and the whole known sequence must fit at this moment.

    `watermark` blocks stay free while others run. With `growth` None nothing else is set aside, after vLLM V1
    (`scheduler_reserve_full_isl`, `watermark`): sequences admitted in different steps can overcommit. With a number,
    room is kept for what every running sequence still needs for its known tokens and `growth` more, so that
    preemptions become rare.
    """

    growth: int | None = None
    uncounted: int = 0  # blocks the watermark is a share of besides the usable ones (vLLM: its null block)

    def refuse(self, builder: StepBuilder, sequence: Sequence, match: Match, tokens: int) -> str | None:
        config, kv = builder.config, builder.kv
        size, hit = config.block_size, len(match.blocks)
        free = kv.available - match.idle  # taking idle cached blocks uses them up as well
        others = len(builder.batch) > 0
        watermark = int(config.watermark * (config.num_blocks + self.uncounted)) if others else 0
        now = -(-(match.length + tokens) // size) - hit
        whole = -(-int(sequence.tokens.size) // size) - hit if config.scheduler_reserve_full_isl else now
        wanted = max(whole, now) + watermark
        most = len(builder.batch) * -(-config.max_model_len // size)  # that running sequences could ever want
        if wanted + most <= free:
            return None  # as a rule there is no need to look at each
        growing = 0 if self.growth is None else self._growing(builder, self.growth)
        if wanted + growing <= free:
            return None
        kept = f", {growing} of them kept for running sequences to grow" if growing else ""
        kept += f", {watermark} of them under the watermark" if watermark else ""
        return f"KV: needs {whole} blocks and {max(free, 0)} are free{kept}"

    def most_blocks(self, config: SchedulerConfig, prompt: int, most: int) -> int:
        return -(-max(most - 1, prompt) // config.block_size)  # the last token needs no K/V

    def _growing(self, builder: StepBuilder, growth: int) -> int:
        """Blocks the running sequences will want before `growth` more tokens each. The same for all who are refused in
        a row, so it is counted once for them."""
        known: Growing | None = builder.estimates
        if known is None or not known.holds(builder):
            blocks = self._counted(builder, growth)
            builder.estimates = known = Growing(builder.step, builder.batch.order, builder.kv.available, blocks)
        return known.blocks

    @staticmethod
    def _counted(builder: StepBuilder, growth: int) -> int:
        batch = builder.batch
        rows = batch.order
        if not rows.size:
            return 0
        ends = np.minimum(batch.length.take(rows) + growth, batch.max_length.take(rows) - 1)
        needs = -(-ends // batch.block_size) - batch.held.take(rows)
        return int(np.add.reduce(np.maximum(needs, 0)))
