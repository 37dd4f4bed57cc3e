"""Whoever fits runs; who runs already and does not fit is starved, and the newest of the starved leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from paceline.core.request import RowArray, Sequence
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


class _Memory:
    """What is remembered from step to step."""

    def __init__(self, rows: int) -> None:
        self.cut: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)  # [rows] the last part did not end what was known
        self.ended = -1  # how many sequences had ended when somebody left; nobody starts before another does


_Starved = tuple[Sequence, int]  # who found no blocks, and for how many tokens


@dataclass(frozen=True)
class SkipStarved:
    """Decodes, unfinished prompts, then waiting sequences, each with as many tokens as the step has left.

    After the continuous batching of transformers 5. `prefill_first`: unfinished prompts before decodes; new ones are
    last all the same. Who does not fit is skipped, not waited for. A running one that does not fit is starved: then
    the newest of the starved are preempted until the others would fit, and nobody starts before somebody has ended.

    While less than `safety_margin` of the blocks are free, at the step's begin, the step ends at the first sequence
    that does not decode, unless it would be the first of the step. Waiting sequences that were swapped out take turns
    with those that were not.
    """

    prefill_first: bool = False
    safety_margin: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.safety_margin <= 1.0:
            raise ConfigError("safety_margin", self.safety_margin, "a share of the blocks from 0 to 1")

    def compose(self, builder: StepBuilder, step: Step) -> None:
        if builder.memory is None:
            builder.memory = _Memory(builder.config.max_num_seqs)
        memory: _Memory = builder.memory
        if memory.ended != _ended(builder) or not len(builder.batch):
            memory.ended = -1
        starved = self._deal(builder, step, memory)
        while self._offload(builder, step, memory, starved) and not len(step.rows):
            starved = self._deal(builder, step, memory)
        rows = np.asarray(step.rows, np.intp)
        memory.cut[rows] = builder.batch.computed[rows] < builder.batch.length[rows]

    def _deal(self, builder: StepBuilder, step: Step, memory: _Memory) -> list[_Starved]:
        """Give out the step's tokens. Who found no blocks, in the order they were tried."""
        order = builder.batch.order
        roomy = builder.kv.available / builder.config.num_blocks >= self.safety_margin
        cut = memory.cut[order]
        groups = [(order[~cut], False), (order[cut], True)]
        starved: list[_Starved] = []
        for rows, prompts in reversed(groups) if self.prefill_first else groups:
            budget = step.budget
            if prompts and not roomy:
                tried = self._run_first(builder, step, rows)
            else:
                builder.run(step, rows)
                tried = rows
            starved += _left_out(builder, step, tried, budget)
            if tried.size < rows.size:
                step.closed = self._why(builder)
                return starved
        if memory.ended >= 0:
            step.closed = "KV: running sequences had no room, so nobody starts before one has ended"
        else:
            builder.admit(step, self._waiting(builder, step, roomy))
        return starved

    @staticmethod
    def _run_first(builder: StepBuilder, step: Step, rows: RowArray) -> RowArray:
        """Run the rows while the step is empty. Those tried."""
        for index in range(rows.size):
            if len(step.rows):
                return rows[:index]
            builder.run(step, rows[index : index + 1])
        return rows

    def _waiting(self, builder: StepBuilder, step: Step, roomy: bool) -> Iterator[Sequence]:
        for sequence in _in_turns(builder) if builder.keeper.sequences else builder.candidates(step):
            if not roomy and len(step.rows):
                step.closed = self._why(builder)
                return
            yield sequence

    def _why(self, builder: StepBuilder) -> str:
        return f"KV: below the safety margin of {self.safety_margin:g} of {builder.config.num_blocks} blocks"

    @staticmethod
    def _offload(builder: StepBuilder, step: Step, memory: _Memory, starved: list[_Starved]) -> bool:
        """Preempt the newest of the starved until all that are left would fit. False: nobody had to go."""
        batch = builder.batch
        gone: list[Sequence] = []
        starved = [(sequence, count) for sequence, count in starved if sequence.row >= 0]
        while starved and len(batch) > 1:
            ends = ((sequence.row, int(batch.computed[sequence.row]) + count) for sequence, count in starved)
            needs = (max(-(-end // batch.block_size) - int(batch.held[row]), 0) for row, end in ends)
            if sum(needs) <= builder.kv.available:
                break
            newest_first = starved[::-1]
            one = next((one for one in newest_first if not builder.protected(one[0].row)), starved[-1])
            starved.remove(one)
            gone.append(one[0])
            builder.preempt(step, one[0])
        if not gone:
            return False
        if len(gone) > 1 and not builder.discipline.eviction.front:  # who was here first waits before the others
            for sequence in reversed(gone):
                builder.waiting.remove(sequence)
                builder.waiting.add(sequence)
        memory.ended = _ended(builder)
        step.closed = "KV: running sequences had no room, so nobody starts before one has ended"
        return True


def _ended(builder: StepBuilder) -> int:
    totals = builder.totals
    return totals.finished + totals.aborted + totals.expired + totals.failed


def _left_out(builder: StepBuilder, step: Step, rows: RowArray, budget: int) -> list[_Starved]:
    """Who of the rows, tried with `budget` tokens, found no blocks."""
    batch = builder.batch
    if not rows.size or np.isin(rows, np.asarray(step.rows, np.int32)).all():
        return []
    given = dict(zip(map(int, step.rows), map(int, step.counts), strict=True))
    out = []
    for row in rows.tolist():
        if budget <= 0:
            break
        if row in given:
            budget -= given[row]
        elif (sequence := batch.occupant[row]) is not None:
            wanted = int(batch.length[row] - batch.computed[row])
            out.append((sequence, min(wanted, step.chunk_limit or wanted, budget)))
    return out


def _in_turns(builder: StepBuilder) -> list[Sequence]:
    """One waiting sequence that keeps K/V, one that does not, and so on."""
    kept: list[Sequence] = []
    fresh: list[Sequence] = []
    for sequence in builder.waiting:
        (kept if sequence.id in builder.keeper.sequences else fresh).append(sequence)
    return [sequence for pair in zip_longest(kept, fresh) for sequence in pair if sequence is not None]
