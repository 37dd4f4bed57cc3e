"""Admit when everything the sequence may ever need is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.request import IntArray, Sequence
from paceline.errors import ConfigError
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder

RESERVES = ("max_model_len", "prompt+max_new", "prompt+max_new-1")


@dataclass(frozen=True)
class WholeLife:
    """Blocks for the whole life of a sequence are promised when it starts, so nobody is ever preempted.

    `reserve` says how much a life is: the longest context for everyone (FasterTransformer), the prompt and all tokens
    to generate (after Orca, TensorRT-LLM), or that without the last token, which needs no K/V (after TGI). What running
    sequences hold already counts towards their promise, shared cached blocks included.
    """

    reserve: str = "prompt+max_new"

    def __post_init__(self) -> None:
        if self.reserve not in RESERVES:
            raise ConfigError("reserve", self.reserve, "one of " + ", ".join(RESERVES))

    def refuse(self, builder: StepBuilder, sequence: Sequence, match: Match, tokens: int) -> str | None:
        needs, free = self.needs(builder.config, sequence, match), self.free(builder)
        if needs + match.idle <= free:
            return None
        return f"KV: needs {needs} blocks for its whole life and {max(free, 0)} are neither held nor promised"

    def needs(self, config: SchedulerConfig, sequence: Sequence, match: Match) -> int:
        """Blocks to be allocated in a life that starts from this hit. (Of the hit, `match.idle` are used up too.)"""
        return int(self._reserved(config, np.array([sequence.max_length], np.int32))[0]) - len(match.blocks)

    def free(self, builder: StepBuilder) -> int:
        """Blocks that nobody holds and nobody is promised."""
        batch = builder.batch
        rows = batch.order
        promised = self._reserved(builder.config, batch.max_length[rows]) - batch.held[rows]
        return builder.kv.available - int(promised.sum())

    def most_blocks(self, config: SchedulerConfig, prompt: int, most: int) -> int:
        return int(self._reserved(config, np.array([max(most, prompt + 1)], np.int32))[0])

    def _reserved(self, config: SchedulerConfig, lengths: IntArray) -> IntArray:
        """Blocks promised to sequences that may grow to `lengths` tokens.

        More than the pool is promised only where K/V need it: a lone sequence may fill the pool to its last token.
        """
        size = config.block_size
        needed = -(-(lengths - 1) // size)
        if self.reserve == "prompt+max_new-1":
            return needed
        wanted = config.max_model_len if self.reserve == "max_model_len" else lengths
        reserved: IntArray = np.maximum(np.minimum(-(-wanted // size), config.num_blocks), needed)
        return reserved
