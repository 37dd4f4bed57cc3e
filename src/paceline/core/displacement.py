"""May a waiting sequence take the place of running ones of worse priority?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paceline.core.first_chunk import may_cut
from paceline.core.keeper import HOLD, RECOMPUTE
from paceline.core.request import IntArray, Sequence
from paceline.core.without import Without
from paceline.errors import ConfigError
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class Displacement:
    """Under an order with levels (`level(sequence)`, smaller is sooner, at most its priority), who finds no row or no
    blocks may take those of running sequences whose level is worse by more than `hysteresis`: of as few as will do, the
    worst and cheapest first, and only where it can then start. Those preempted too often already are left alone."""

    displace: bool = False
    hysteresis: int = 0

    def __post_init__(self) -> None:
        if self.hysteresis < 0:
            raise ConfigError("hysteresis", self.hysteresis, "a number of levels of at least 0")

    def make_room(self, builder: StepBuilder, step: Step, sequence: Sequence, reason: str) -> bool:
        """Preempt for a sequence that could not start for the `reason` given. True: it can start now."""
        level: Callable[[Any], int] | None = getattr(builder.waiting, "level", None)
        if level is None or not reason.startswith(("slots: all", "KV")):
            return False
        worse = self._worse(builder, level, level(sequence))
        if not worse:
            return False
        match = builder.match(sequence)
        room = _Room(builder, step, sequence, match)
        if not room.perhaps(worse):
            return False
        victims = room.smallest([row for row in worse if room.may_go(row)])
        if victims is None or builder.promotions.fetch(sequence, match) is not None:
            return False
        blocks = reason.startswith("KV")
        for row in victims:
            give_way(builder, step, builder.batch.occupant[row], blocks)
        return True

    def _worse(self, builder: StepBuilder, level: Callable[[Any], int], mine: int) -> list[int]:
        """Running rows that may go: the worst level first; of equals who loses least, of these the newest."""
        batch = builder.batch
        order = batch.order
        order = order[batch.priority[order] - mine > self.hysteresis]  # no level is worse than the priority
        if not order.size:
            return []
        levels = {row: level(batch.occupant[row]) for row in order.tolist() if not builder.protected(row)}
        age = {row: index for index, row in enumerate(levels)}
        worse = [row for row, its in levels.items() if its - mine > self.hysteresis]
        return sorted(worse, key=lambda row: (-levels[row], int(batch.computed[row]), -age[row]))


def give_way(builder: StepBuilder, step: Step, victim: Sequence, blocks: bool) -> None:
    """Preempt a sequence whose `blocks`, or else only whose row, another is going to have."""
    how = builder.how.choose(builder, victim, blocks)
    builder.preempt(step, victim, RECOMPUTE if blocks and how == HOLD else how)


class _Room:
    """What a sequence could start with if some rows were empty."""

    def __init__(self, builder: StepBuilder, step: Step, sequence: Sequence, match: Match) -> None:
        self.builder, self.step, self.sequence, self.match = builder, step, sequence, match
        self.counts = np.zeros(builder.config.max_num_seqs, np.int64)
        self.counts[np.asarray(step.rows, np.intp)] = step.counts
        self.started = {one.id for one in (*step.new, *step.resumed)}
        self.wanted = set(match.blocks)

    @cached_property
    def references(self) -> npt.NDArray[np.int64]:
        """[num_blocks] how often running and held sequences refer to each block."""
        batch = self.builder.batch
        rows = batch.order.tolist()
        tables = [batch.blocks(row) for row in rows]
        for one in self.builder.keeper.sequences.values():
            if one.kept_blocks is not None:
                tables += [one.kept_blocks, np.array(one.lease.shadow, np.int32)]
        return self._count(rows, tables)

    def perhaps(self, rows: list[int]) -> bool:
        """Would it do if all of these left, and nobody else had a part in their blocks? Cheap to ask."""
        return self._starts(rows, int(self.builder.batch.held[rows].sum()), self.match.idle)

    def may_go(self, row: int) -> bool:
        """Not who started in this step, nor whose blocks of this step somebody builds on."""
        builder = self.builder
        sequence = builder.batch.occupant[row]
        if sequence.id in self.started:
            return False
        size, end = builder.batch.block_size, int(builder.batch.computed[row])
        unwritten = builder.batch.blocks(row)[(end - int(self.counts[row])) // size : end // size]
        return not unwritten.size or not (self.started or self.wanted.intersection(unwritten.tolist()))

    def smallest(self, rows: list[int]) -> list[int] | None:
        """As few of `rows` as will do, the first ones where there is a choice; None: all of them will not do."""
        if not rows or not self.enough(rows):
            return None
        for row in rows:
            if self.enough([row]):
                return [row]
        chosen: list[int] = []
        for row in rows:
            chosen.append(row)
            if self.enough(chosen):
                break
        for row in chosen[-2::-1]:  # the last is needed; of the others, the better ones stay where they can
            fewer = [one for one in chosen if one != row]
            if self.enough(fewer):
                chosen = fewer
        return chosen

    def enough(self, rows: list[int]) -> bool:
        leaving = self._count(rows, [self.builder.batch.blocks(row) for row in rows])
        freed = (leaving > 0) & (leaving == self.references)
        idle = self.match.idle + int(freed[np.asarray(self.match.blocks, np.intp)].sum())
        return self._starts(rows, int(freed.sum()), idle)

    def _starts(self, rows: list[int], freed: int, idle: int) -> bool:
        """Could it start without these rows, with so many blocks more and so many of its own that nobody holds?"""
        builder, step = self.builder, self.step
        budget = step.budget + int(self.counts[rows].sum())
        count = int(self.sequence.tokens.size) - self.match.length
        if step.chunk_limit:
            count = min(count, step.chunk_limit)
        if count > budget and not may_cut(builder.config, step):
            return False
        order = builder.batch.order
        state: StepBuilder = Without(builder, order[~np.isin(order, rows)], freed)  # type: ignore[assignment]
        match = self.match._replace(idle=idle)
        return builder.discipline.admission.refuse(state, self.sequence, match, min(count, budget)) is None

    def _count(self, rows: list[int], tables: list[IntArray]) -> npt.NDArray[np.int64]:
        """[num_blocks] how often these refer to each block."""
        shadows = [self.builder.batch.leases[row].shadow for row in rows]
        tables = tables + [np.array(shadow, np.int32) for shadow in shadows if shadow]
        every = np.concatenate(tables) if tables else np.zeros(0, np.int32)
        return np.bincount(every, minlength=self.builder.config.num_blocks)
