"""Capacity first, then a micro-batch: contexts before generations, prompts cut in units."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.compositions.closed_batch import close
from paceline.core.request import RowArray, Sequence
from paceline.core.without import Without
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder

POLICIES = ("first_come_first_served", "equal_progress")


@dataclass(frozen=True)
class ContextsFirst:
    """Generations and whole prompts share a step, prompts first in it; after TensorRT-LLM's in-flight batching.

    With chunked prefill, prompts share what the generations leave of the token budget. `first_come_first_served`
    gives each as much as it can take, `equal_progress` one unit each in turn; a part that does not end its prompt is
    a multiple of `chunk_unit` tokens (0: a block). A prompt that gets no part is left out, and those behind it may have
    the rest of the budget, but not the blocks it wants.
    `closed`: nobody joins while somebody runs. In a step that preempts, nobody is admitted.
    """

    chunking: str = "first_come_first_served"
    chunk_unit: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        if self.chunking not in POLICIES:
            raise ConfigError("chunking", self.chunking, "one of " + ", ".join(POLICIES))
        if self.chunk_unit < 0:
            raise ConfigError("chunk_unit", self.chunk_unit, "a whole number of at least 0; 0 means one block")

    def compose(self, builder: StepBuilder, step: Step) -> None:
        batch = builder.batch
        generating = batch.order
        contexts = generating[:0]
        joins = not (self.closed and generating.size)
        if generating.size:
            unfinished = batch.length[generating] - batch.computed[generating] > 1
            if unfinished.any():
                contexts, generating = generating[unfinished], generating[~unfinished]
            builder.run(step, generating)
        last = len(step.rows)
        generations = set(np.asarray(step.rows).tolist()) if contexts.size else set()
        if not builder.config.enable_chunked_prefill:
            builder.run(step, contexts)
            if joins and not step.preempted:
                builder.admit(step)
        elif self.chunking == "equal_progress":
            self._equal_progress(builder, step, contexts, joins)
        else:
            self._first_come(builder, step, contexts, joins)
        if contexts.size and step.preempted:  # a generation of this step may have been a victim
            last = sum(row in generations for row in np.asarray(step.rows[:last]).tolist())
        step.put_last(last)
        if not joins:
            close(step, len(batch))

    def _unit(self, builder: StepBuilder, step: Step) -> int:
        """Never above what a prompt may get in a step, which would leave it without a part for ever."""
        unit = min(self.chunk_unit or builder.config.block_size, builder.config.max_num_batched_tokens)
        return min(unit, step.chunk_limit) if step.chunk_limit else unit

    def _first_come(self, builder: StepBuilder, step: Step, contexts: RowArray, joins: bool) -> None:
        unit = self._unit(builder, step)
        self._run(builder, step, contexts, step.chunk_limit or step.budget, unit)
        if joins:
            self._admit(builder, step, None, unit)

    def _equal_progress(self, builder: StepBuilder, step: Step, contexts: RowArray, joins: bool) -> None:
        """A unit each in the order of the queue, then further rounds until the budget or everybody's wish is met."""
        unit = self._unit(builder, step)
        first = len(step.rows)
        self._run(builder, step, contexts, unit, unit)
        if joins:
            self._admit(builder, step, unit, unit)
        if step.preempted or step.budget <= 0:
            return
        batch = builder.batch
        members = [int(row) for row in step.rows[first:]]
        given = np.array(step.counts[first:], np.int64)
        rest = np.array([int(batch.length[row] - batch.computed[row]) for row in members])
        limits = given + rest if not step.chunk_limit else np.minimum(given + rest, step.chunk_limit)
        more = np.zeros_like(given)
        left, progress = step.budget, True
        while left and progress:
            progress = False
            for index in range(len(members)):
                part = min(unit, int(rest[index] - more[index]))
                if 0 < part <= left and given[index] + more[index] + part <= limits[index]:
                    more[index] += part
                    left -= part
                    progress = True
        for row, part in zip(members, more.tolist(), strict=True):
            blocks = -(-(int(batch.computed[row]) + part) // batch.block_size) - int(batch.held[row])
            if part and blocks <= builder.kv.available:
                builder.enlarge(step, row, part)

    @staticmethod
    def _run(builder: StepBuilder, step: Step, contexts: RowArray, most: int, unit: int) -> None:
        """Give unfinished prompts their parts, making room as the discipline does."""
        batch = builder.batch
        for row in contexts.tolist():
            if batch.occupant[row] is None:  # preempted for a row before it
                continue
            rest = int(batch.length[row] - batch.computed[row])
            count = min(rest, step.budget, most)
            if count < rest:
                count -= count % unit
            if count <= 0:
                continue
            if builder.make_room(step, row, count):
                builder.extend(step, row, count)
            elif not builder.discipline.eviction.yields_turn:
                return

    @staticmethod
    def _admit(builder: StepBuilder, step: Step, most: int | None, unit: int) -> None:
        """New prompts, in order. One that gets no part is left out; the others may have what is left beside it."""
        if step.preempted:
            return
        batch, kept = builder.batch, 0  # blocks that those left out want
        for sequence in list(islice(iter(builder.waiting), builder.config.max_num_seqs)):
            if kept and not _fits_beside(builder, sequence, kept):
                return
            if (reason := builder.try_admit(step, sequence, most, unit)) is None:
                continue
            if step.blocked[0] is None:
                step.blocked = (sequence, reason)
            else:
                step.tried[sequence.id] = reason
            if step.budget <= 0 or batch.full or not reason.startswith("budget"):
                return
            size = int(sequence.tokens.size)
            kept += builder.discipline.admission.most_blocks(builder.config, size, sequence.max_length)


def _fits_beside(builder: StepBuilder, sequence: Sequence, blocks: int) -> bool:
    """Could it start if so many blocks less were free?"""
    state: StepBuilder = Without(builder, builder.batch.order, -blocks)  # type: ignore[assignment]
    return builder.discipline.admission.refuse(state, sequence, builder.match(sequence), 1) is None
