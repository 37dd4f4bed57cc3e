"""Admit when the blocks of the whole prompt are free, above a watermark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.config import SchedulerConfig
from paceline.core.request import Sequence
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class PromptFits:
    """All known tokens fit and `watermark` blocks stay free, whatever part is computed now. After vLLM V0.

    A swapped sequence needs `ahead` blocks beyond those it had (vLLM V0: one for its next token). Nobody keeps one
    that would run alone waiting for more than its own blocks.
    """

    ahead: int = 1

    def refuse(self, builder: StepBuilder, sequence: Sequence, match: Match, tokens: int) -> str | None:
        config = builder.config
        free = builder.kv.available - match.idle  # taking idle cached blocks uses them up as well
        needs = -(-int(sequence.tokens.size) // config.block_size) - len(match.blocks)
        watermark = 0
        if len(builder.batch):
            watermark = int(config.watermark * config.num_blocks)
            if sequence.swapped:
                needs = max(needs, len(sequence.swapped) + self.ahead - len(match.blocks))
        if needs + watermark <= free:
            return None
        kept = f", {watermark} of them under the watermark" if watermark else ""
        return f"KV: needs {needs} blocks and {max(free, 0)} are free{kept}"

    def most_blocks(self, config: SchedulerConfig, prompt: int, most: int) -> int:
        return -(-max(most - 1, prompt) // config.block_size)  # the last token needs no K/V
