"""May a waiting sequence take the place of running ones of worse priority?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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
    """Under an order with levels (`level(sequence)`, smaller is sooner), who finds no row or no blocks may take those
    of running sequences whose level is worse by more than `hysteresis`: of as few as will do, the worst and cheapest
    first, and only where it can then start. Those preempted too often already are left alone."""

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
        match = builder.match(sequence)
        room = _Room(builder, step, sequence, match)
        mine = level(sequence)
        levels = {row: level(builder.batch.occupant[row]) for row in builder.batch.order.tolist()}
        worse = [row for row, its in levels.items() if its - mine > self.hysteresis and room.may_go(row)]
        # The worst level first; of equals who loses least, of these the newest.
        age = {row: index for index, row in enumerate(levels)}
        worse.sort(key=lambda row: (-levels[row], int(builder.batch.computed[row]), -age[row]))
        victims = room.smallest(worse)
        if victims is None or builder.promotions.fetch(sequence, match) is not None:
            return False
        blocks = reason.startswith("KV")
        for row in victims:
            victim = builder.batch.occupant[row]
            how = builder.how.choose(builder, victim, blocks)
            builder.preempt(step, victim, RECOMPUTE if blocks and how == HOLD else how)
        return True


class _Room:
    """What a sequence could start with if some rows were empty."""

    def __init__(self, builder: StepBuilder, step: Step, sequence: Sequence, match: Match) -> None:
        self.builder, self.step, self.sequence, self.match = builder, step, sequence, match
        self.counts = dict(zip(np.asarray(step.rows).tolist(), np.asarray(step.counts).tolist(), strict=True))
        self.started = {one.id for one in (*step.new, *step.resumed)}
        self.wanted = set(match.blocks)
        kept = [one.kept_blocks for one in builder.keeper.sequences.values() if one.kept_blocks is not None]
        leases = [one.lease for one in builder.keeper.sequences.values() if one.kept_blocks is not None]
        rows = builder.batch.order.tolist()
        tables = [*(builder.batch.blocks(row) for row in rows), *kept]
        tables += [np.array(lease.shadow, np.int32) for lease in leases if lease.shadow]
        self.references = self._count(rows, tables)

    def may_go(self, row: int) -> bool:
        """Not who started in this step, nor whose blocks of this step somebody builds on, nor who went too often."""
        builder = self.builder
        sequence = builder.batch.occupant[row]
        if sequence.id in self.started or builder.protected(row):
            return False
        size, end = builder.batch.block_size, int(builder.batch.computed[row])
        unwritten = builder.batch.blocks(row)[(end - self.counts.get(row, 0)) // size : end // size]
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
        builder, step, match = self.builder, self.step, self.match
        budget = step.budget + sum(self.counts.get(row, 0) for row in rows)
        count = int(self.sequence.tokens.size) - match.length
        if step.chunk_limit:
            count = min(count, step.chunk_limit)
        if count > budget and not builder.may_cut(step):
            return False
        order = builder.batch.order[~np.isin(builder.batch.order, rows)]
        leaving = self._count(rows, [builder.batch.blocks(row) for row in rows])
        freed = (leaving > 0) & (leaving == self.references)
        idle = match.idle + int(freed[np.asarray(match.blocks, np.intp)].sum())
        state: StepBuilder = Without(builder, order, int(freed.sum()))  # type: ignore[assignment]
        refusal = builder.discipline.admission.refuse(
            state, self.sequence, match._replace(idle=idle), min(count, budget)
        )
        return refusal is None

    def _count(self, rows: list[int], tables: list[IntArray]) -> npt.NDArray[np.int64]:
        """[num_blocks] how often these refer to each block."""
        shadows = [self.builder.batch.leases[row].shadow for row in rows]
        tables = tables + [np.array(shadow, np.int32) for shadow in shadows if shadow]
        every = np.concatenate(tables) if tables else np.zeros(0, np.int32)
        return np.bincount(every, minlength=self.builder.config.num_blocks)
