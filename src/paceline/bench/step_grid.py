"""Which steps a profile measures, and plans for them that an executor runs as it runs any other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from paceline.core.params import SamplingParams
from paceline.core.plan import Entered, StepPlan, StepResult

Rows = list[tuple[int, int]]
"""Of each row of a step: (tokens before it, tokens now)."""

_FIRST_TOKEN = 100  # ids below are often special
_GREEDY = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
# Kernels favour round sizes: those between tell what a step takes on average. The small ones, which a load meets most,
# are all there.
_COUNTS = (*range(1, 17), 18, 21, 24, 28, 32, 37, 43, 49, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
_CONTEXTS = (16, 64, 256, 1024, 4096)
_CHUNKS = (2, 4, 7, 10, 15, 20, 27, 35, 47, 62, 83, 110, 145, 192, 256, 400, 512, 790, 1024, 2048, 4096)


class Executor(Protocol):
    """What is measured."""

    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        ...


class Grid:
    """Steps that the executor's memory allows: decodes, prompts whole and in chunks, several, and all together."""

    def __init__(self, executor: Executor, max_num_seqs: int, token_budget: int) -> None:
        self.executor, self.rows, self.budget = executor, max_num_seqs, token_budget
        length = executor.max_model_len
        self._tokens = np.random.default_rng(0).integers(
            min(_FIRST_TOKEN, executor.vocab_size // 2), executor.vocab_size, (max_num_seqs, length), dtype=np.int32
        )
        # Scattered over the memory, as they are in an engine that has served for a while.
        self._blocks = np.random.default_rng(1).permutation(executor.num_blocks).astype(np.int32)
        self._table = np.zeros((max_num_seqs, -(-length // executor.block_size)), np.int32)
        self._step = 0

    def steps(self) -> list[Rows]:
        """The grid: each kind of step in sizes that double, contexts that grow fourfold."""
        longest = self.executor.max_model_len - 2
        contexts = [size for size in _CONTEXTS if size <= longest]
        counts = [count for count in _COUNTS if count <= self.rows]
        chunks = [size for size in _CHUNKS if size <= min(self.budget, longest)]
        found: list[Rows] = [[(context, 1)] * count for count in counts for context in contexts[:3:2]]
        found += [[(context, 1)] * count for count in counts[::4] for context in contexts[1::2]]
        found += [[(0, size)] for size in chunks]
        found += [[(context, size)] for size in chunks[5::4] for context in contexts[2:] if context + size <= longest]
        found += [[(0, size)] * count for size in chunks[3:12:4] for count in (2, 3, 5)]
        found += [
            [(context, 1)] * count + [(0, size)] * prompts
            for count, sizes in zip(counts[2::3], itertools.cycle((chunks[1::4], chunks[2::4], chunks[3::4])))
            for size, prompts in [(size, 1) for size in sizes] + [(sizes[0], 3)]
            for context in contexts[1:2]
        ]
        return [rows for rows in found if self.fits(rows)]

    def fits(self, rows: Sequence[tuple[int, int]]) -> bool:
        """May the executor be asked for this step?"""
        size = self.executor.block_size
        held = sum(-(-(before + now) // size) for before, now in rows)
        tokens = sum(now for _, now in rows)
        longest = max(before + now for before, now in rows)
        return (
            len(rows) <= self.rows
            and tokens <= self.budget
            and held <= self.executor.num_blocks
            and longest < self.executor.max_model_len
        )

    def plan(self, rows: Sequence[tuple[int, int]], fresh: bool = False) -> StepPlan:
        """A step of those rows, each with blocks of its own; what lies in them does not matter for the time.

        `fresh`: rows are sequences that the executor has not seen.
        """
        size, block = self.executor.block_size, 0
        for row, (before, now) in enumerate(rows):
            needs = -(-(before + now) // size)
            self._table[row, :needs] = self._blocks[block : block + needs]
            block += needs
        self._step += 1
        starts, counts = (np.array([pair[side] for pair in rows], np.int32) for side in (0, 1))
        return StepPlan(
            step=self._step,
            rows=np.arange(len(rows), dtype=np.int32),
            starts=starts,
            counts=counts,
            samples=np.ones(len(rows), np.bool_),
            tokens=self._tokens,
            block_table=self._table,
            prompt_lengths=np.ones(self.rows, np.int32),
            entered=[Entered(row, str(row), _GREEDY, row, 1) for row in range(len(rows))] if fresh else [],
        )
