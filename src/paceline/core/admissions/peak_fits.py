"""Admit when the highest KV use there will ever be, given how long each will live, stays below the capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from paceline.core.config import SchedulerConfig
from paceline.core.request import Sequence
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder

Lengths = npt.NDArray[np.int64]


def peak(held: Lengths, left: Lengths) -> int:
    """Most tokens held at any one time by sequences that hold `held` [S] now and add `left` [S] more before they end.

    All add one a step. When the one with the i-th longest life ends, exactly those with longer lives are there beside
    it, and each has grown as much as it; so the peak is at one of these ends, and exact for known lengths.
    """
    order = np.argsort(-left, kind="stable")
    return int((np.cumsum(held[order]) + np.arange(1, order.size + 1) * left[order]).max())


@dataclass(frozen=True)
class PeakFits:
    """The peak of running sequences and this one stays strictly below all tokens of KV. After LightLLM.

    Lengths are taken at their limits while KV is at least `router_token_ratio` full (0: always, so that nobody has to
    be preempted); below that, as 1.1 times what was generated so far, at least `router_max_new_token_len`. `slack`
    tokens are added to every life. Who would run alone only needs room for its known tokens.
    """

    router_token_ratio: float = 0.0
    router_max_new_token_len: int = 1024
    slack: int = 6

    def refuse(self, builder: StepBuilder, sequence: Sequence, match: Match, tokens: int) -> str | None:
        config, batch = builder.config, builder.batch
        free = builder.kv.available - match.idle
        needs = -(-int(sequence.tokens.size) // config.block_size) - len(match.blocks)
        if needs > free:
            return f"KV: needs {needs} blocks and {max(free, 0)} are free"
        if not len(batch):
            return None
        capacity = config.num_blocks * config.block_size
        highest = self._peak(builder, sequence)
        if highest < capacity:
            return None
        return f"KV: would need {highest} tokens at the worst moment to come, and not more than {capacity - 1} may be"

    def most_blocks(self, config: SchedulerConfig, prompt: int, most: int) -> int:
        return -(-max(most - 1, prompt) // config.block_size)  # the last token needs no K/V

    def _peak(self, builder: StepBuilder, sequence: Sequence) -> int:
        config, batch = builder.config, builder.batch
        rows = batch.order
        known = np.append(batch.length[rows], sequence.tokens.size).astype(np.int64)
        out = known - np.append(batch.prompt_length[rows], sequence.prompt_length)
        limit = np.append(batch.max_length[rows], sequence.max_length) - known + out
        used = 1.0 - builder.kv.available / config.num_blocks
        if used < self.router_token_ratio:
            limit = np.minimum(limit, np.maximum((1.1 * out).astype(np.int64), self.router_max_new_token_len))
        starting = (batch.computed[rows] == batch.length[rows]) | (batch.length[rows] == batch.prompt_length[rows])
        known += np.append(starting, True)  # who is not through its prompt yet, counted with the token it will give
        known += config.block_size - 1  # what its last block may leave unused
        return peak(known, np.maximum(limit - out - 1, 0) + self.slack)
