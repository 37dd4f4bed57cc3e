"""Builds step plans by hand: a batch of token lists that share a shuffled pool of blocks."""

from __future__ import annotations

import numpy as np

from paceline.core.params import SamplingParams
from paceline.core.plan import Entered, StepPlan

GREEDY = SamplingParams(temperature=0.0, max_tokens=None)


class PlanBatch:
    """Sequences in the rows of a batch, as a scheduler would hold them. Row i is sequence i.

    `blocks` of the pool are dealt out in a shuffled order, so that nothing rests on neighbouring blocks.
    """

    def __init__(
        self,
        prompts: list[list[int]],
        *,
        num_blocks: int,
        block_size: int = 16,
        max_model_len: int = 256,
        params: list[SamplingParams] | SamplingParams = GREEDY,
        seeds: list[int] | None = None,
    ) -> None:
        count = len(prompts)
        self.block_size = block_size
        self.tokens = np.zeros((count, max_model_len), np.int32)
        per_row = -(-max_model_len // block_size)
        assert count * per_row <= num_blocks, "the pool is too small for these sequences at their longest"
        blocks = np.random.default_rng(0).permutation(num_blocks)[: count * per_row]
        self.block_table = blocks.reshape(count, per_row).astype(np.int32)
        self.lengths = np.array([len(prompt) for prompt in prompts], np.int32)  # known tokens
        self.prompt_lengths = self.lengths.copy()
        self.computed = np.zeros(count, np.int32)
        for row, prompt in enumerate(prompts):
            self.tokens[row, : len(prompt)] = prompt
        self.params = params if isinstance(params, list) else [params] * count
        self.seeds = seeds or list(range(count))
        self.entered: set[int] = set()
        self.step = 0

    def plan(self, counts: dict[int, int] | None = None) -> StepPlan:
        """A step that computes `counts` tokens by row, in that order; by default all that is known of every row."""
        if counts is None:
            counts = {row: int(self.lengths[row] - self.computed[row]) for row in range(len(self.lengths))}
        rows = np.array(list(counts), np.int32)
        number = np.array(list(counts.values()), np.int32)
        new = [row for row in counts if row not in self.entered]
        self.entered |= set(new)
        self.step += 1
        return StepPlan(
            step=self.step,
            rows=rows,
            starts=self.computed[rows].copy(),
            counts=number,
            samples=self.computed[rows] + number == self.lengths[rows],
            tokens=self.tokens,
            block_table=self.block_table,
            prompt_lengths=self.prompt_lengths,
            entered=[
                Entered(row, f"s{row}", self.params[row], self.seeds[row], int(self.prompt_lengths[row])) for row in new
            ],
        )

    def complete(self, plan: StepPlan, tokens: np.ndarray) -> None:
        """Take in the sampled tokens of a step."""
        self.computed[plan.rows] += plan.counts
        for row, token in zip(plan.rows[plan.samples], tokens, strict=True):
            self.tokens[row, self.lengths[row]] = token
            self.lengths[row] += 1

    def generated(self, row: int) -> list[int]:
        return self.tokens[row, self.prompt_lengths[row] : self.lengths[row]].tolist()
