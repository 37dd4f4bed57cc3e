"""Where an executor keeps K/V, without a model: a mark of the exact prefix in every place of every block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.plan import Moved, StepPlan, StepResult
from paceline.core.step import Step
from tests.core.asks import POISON, Reference


class Device:
    """Blocks on the device, on the host and on disk, and a step's work on them."""

    def __init__(self, config: SchedulerConfig, block_seconds: float, damaged: int) -> None:
        self.config = config
        self.block_seconds = block_seconds
        self.damaged = damaged
        self.contents = np.full((config.num_blocks, config.block_size), POISON)
        self.host = np.full((config.num_host_blocks, config.block_size), POISON)
        self.disk: dict[bytes, Any] = {}  # content key -> marks
        self.failed = False  # some step was not executed

    def execute(self, plan: StepPlan, decided: Step, rows: Mapping[int, Reference]) -> StepResult:
        """Swaps and copies, then writes, then reads; the tokens sampled follow from what was read."""
        size, contents = self.config.block_size, self.contents
        leaving = contents[plan.swap_out[:, 0]]
        sources = contents[plan.copies[:, 0]] if plan.copies.size else None
        # Who was held has its blocks as it left them; who comes back from the host gets all of its own.
        held = decided.kept.keys() - decided.swapped_in.keys()
        fresh = {entered.row for entered in plan.entered if entered.sequence_id not in held}
        spans = []
        for row, start, count in zip(plan.rows.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True):
            end = start + count
            table = plan.block_table[row, : -(-end // size)]
            # What a block held before it was given to this sequence is unknown, whatever it happens to be.
            contents[table[start // size if row in fresh else -(-start // size) :]] = POISON
            spans.append((rows[row], row, start, end, table))
        lost = self._execute_disk(plan)
        self.host[plan.swap_out[:, 1]] = leaving
        if sources is not None:
            contents[plan.copies[:, 1]] = sources
        contents[plan.swap_in[:, 1]] = self.host[plan.swap_in[:, 0]]
        written: list[int] = []
        for reference, row, start, end, table in spans:
            assert plan.tokens[row, :end].tolist() == reference.tokens[:end], f"{rows[row].name} has other tokens"
            places = np.arange(start, end)
            flat = table[places // size].astype(np.int64) * size + places % size
            contents.reshape(-1)[flat] = reference.marks[start:end]
            written += flat.tolist()
        assert len(set(written)) == len(written), "two rows write one place"
        tokens = []
        for (reference, row, _, end, table), samples in zip(spans, plan.samples.tolist(), strict=True):
            read = contents[table].reshape(-1)[:end]
            wrong = np.flatnonzero(read != reference.marks[:end])
            assert not wrong.size, f"{rows[row].name} reads foreign K/V at {wrong.tolist()}, blocks {table.tolist()}"
            if samples:
                tokens.append(reference.choose(int(read[-1])))
        counts = (len(plan.swap_out), len(plan.swap_in), len(plan.from_disk), len(plan.to_disk))
        costs = (part for count in counts for part in (count, count * self.block_seconds))
        return StepResult(np.array(tokens, np.int32), seconds=1.0, moved=Moved(*costs), lost=lost)

    def _execute_disk(self, plan: StepPlan) -> list[bytes]:
        """Writes read the host as it was before the step; reads of damaged blocks give nothing."""
        for key in plan.drop_disk:
            self.disk.pop(key, None)
        written = {key: self.host[block].copy() for block, key in plan.to_disk}
        assert len(written) == len(plan.to_disk)
        lost = []
        for key, block in plan.from_disk:
            assert key in self.disk, "a block is read from disk that is not there"
            if self.damaged and key[0] % self.damaged == 0:
                lost.append(key)
                del self.disk[key]
            self.host[block] = self.disk.get(key, POISON)
        self.disk.update(written)
        assert len(self.disk) <= self.config.num_disk_blocks or self.failed
        return lost
