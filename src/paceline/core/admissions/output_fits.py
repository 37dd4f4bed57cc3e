"""Admit when prompt and all tokens to come fit beside what is promised to running sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.config import SchedulerConfig
from paceline.core.request import Sequence
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class OutputFits:
    """Uncached tokens + tokens to generate + what running sequences still add <= free tokens. After mini-SGLang.

    Each running sequence counts with a block less one token more, for what its last block leaves unused. Who would run
    alone needs exactly its blocks.
    """

    def refuse(self, builder: StepBuilder, sequence: Sequence, match: Match, tokens: int) -> str | None:
        config, batch = builder.config, builder.batch
        size = config.block_size
        free = (builder.kv.available - match.idle) * size
        if not len(batch):
            needs = -(-(sequence.max_length - 1) // size) * size - len(match.blocks) * size
            promised = 0
        else:
            needs = sequence.max_length - len(match.blocks) * size
            rows = batch.order
            promised = int((batch.max_length[rows] - batch.computed[rows]).sum()) + rows.size * (size - 1)
            # Blocks given for known tokens that are not computed yet are not free, and not to be promised again.
        if needs + promised <= free:
            return None
        return f"KV: needs {needs} tokens to its end, and {max(free - promised, 0)} are neither used nor promised"

    def most_blocks(self, config: SchedulerConfig, prompt: int, most: int) -> int:
        return -(-max(most - 1, prompt) // config.block_size)  # the last token needs no K/V
