"""Admit when prompt and output fit, with the output of running sequences discounted by experience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.request import Sequence
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass
class NewTokenRatio:
    """The share of its remaining output limit that a running sequence is expected to use. One per scheduler.

    Falls in a straight line while decoding goes well, is set from what was generated when sequences had to be
    preempted, and starts again when nothing runs.
    """

    start: float
    floor: float
    fall: float  # a step
    value: float

    def decoded(self) -> None:
        self.value = max(self.value - self.fall, self.floor)

    def preempted(self, generated: int, limits: int, ahead: int) -> None:
        """`generated` tokens so far and `limits` in all of the sequences left; each has `ahead` steps of reserve."""
        self.value = min((generated + ahead) / (limits + 1), 1.0)

    def idle(self) -> None:
        self.value = self.start


@dataclass(frozen=True)
class DiscountedOutputFits:
    """Uncached tokens + output limit + a block, strictly below free tokens less what is expected. After SGLang.

    Expected of a sequence that was running before this step: its remaining output limit times the new-token ratio (1
    where it ignores end-of-sequence). One admitted in this step counts in full and with a block more. Output limits
    above `clip` count as `clip`. The ratio starts at `init_ratio` x `schedule_conservativeness`, falls to `min_ratio`
    of that within `decay_steps` decode steps, and is set after a preemption with `reserve_steps` tokens for each
    sequence left. Who would run alone needs room for its known tokens.
    """

    schedule_conservativeness: float = 1.0
    init_ratio: float = 0.7
    min_ratio: float = 0.14
    decay_steps: int = 600
    reserve_steps: int = 20
    clip: int = 4096

    def refuse(self, builder: StepBuilder, sequence: Sequence, match: Match, tokens: int) -> str | None:
        config, batch = builder.config, builder.batch
        size, known = config.block_size, int(sequence.tokens.size)
        blocks = builder.kv.available - match.idle
        hit = len(match.blocks)
        now = -(-(match.length + tokens) // size) - hit if len(batch) else -(-known // size) - hit
        if now > blocks:
            return f"KV: needs {now} blocks and {max(blocks, 0)} are free"
        if not len(batch):
            return None
        needs = known - hit * size + min(sequence.max_length - known, self.clip) + size
        expected = self._expected(builder)
        if needs < blocks * size - expected:
            return None
        return f"KV: needs {needs} tokens of the {blocks * size} that are free, {expected} of them expected to be used"

    def most_blocks(self, config: SchedulerConfig, prompt: int, most: int) -> int:
        return -(-max(most - 1, prompt) // config.block_size)  # the last token needs no K/V

    def observe(self, builder: StepBuilder, step: Step) -> None:
        ratio, batch = self.ratio(builder), builder.batch
        rows = batch.order
        if not rows.size:
            ratio.idle()
        elif step.preempted:
            generated = int((batch.length[rows] - batch.prompt_length[rows]).sum())
            limits = int((batch.max_length[rows] - batch.prompt_length[rows]).sum())
            ratio.preempted(generated, limits, self.reserve_steps * rows.size)
        elif not step.entered and len(step.rows) == rows.size:
            ratio.decoded()

    def ratio(self, builder: StepBuilder) -> NewTokenRatio:
        if builder.estimates is None:
            start = min(self.init_ratio * self.schedule_conservativeness, 1.0)
            floor = start * self.min_ratio
            builder.estimates = NewTokenRatio(start, floor, (start - floor) / max(self.decay_steps, 1), start)
        ratio: NewTokenRatio = builder.estimates
        return ratio

    def _expected(self, builder: StepBuilder) -> int:
        batch, step = builder.batch, builder.step
        rows = batch.order
        left = np.minimum(batch.max_length[rows] - batch.length[rows], self.clip)
        total = float((left * np.where(batch.eos_counts[rows], self.ratio(builder).value, 1.0)).sum())
        for entered in step.entered if step is not None else ():
            row = entered.row
            whole = min(int(batch.max_length[row] - batch.length[row]), self.clip)
            counted = whole * (self.ratio(builder).value if batch.eos_counts[row] else 1.0)
            cut = batch.computed[row] < batch.length[row]  # its output is counted once its last part is computed
            total += (0 if cut else whole + builder.config.block_size) - counted
        return int(np.ceil(total))
