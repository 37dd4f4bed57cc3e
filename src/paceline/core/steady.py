"""Many decode steps at once, for drivers that know what every step takes and samples.

When nobody waits and every running row wants one token, step after step is decided alike until a row ends or blocks
run short. A simulator may then take those steps together: the state afterwards, the order in which blocks are given
included, is what one schedule() and complete() after another would have left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.core.compositions import MixedChunks
from paceline.core.orders.fcfs import Fcfs
from paceline.core.orders.priority import Priority
from paceline.core.request import FinishReason, IntArray, Sequence
from paceline.core.scheduler import Scheduler
from paceline.core.step_builder import Observer

LONGEST = 4096  # steps taken at once, at most

# Under these, a step in which nobody waits and everybody decodes is the same whatever came before it.
_COMPOSITIONS: tuple[type, ...] = (MixedChunks,)
_ORDERS: tuple[type, ...] = (Fcfs, Priority)


class SteadyDecode:
    """Asks a scheduler how many alike decode steps are ahead, and takes them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        row = scheduler.discipline
        self.possible = (
            type(row.composition) in _COMPOSITIONS
            and type(scheduler.waiting) in _ORDERS
            and not row.together
            and not isinstance(row.admission, Observer)
            and not isinstance(row.eviction, Observer)
            and not scheduler.config.eos_token_ids
        )

    def steps(self) -> int:
        """Steps from here on in which every running row decodes one token, up to and with the first in which one
        ends by its length. 0: the next step has to be scheduled."""
        scheduler = self.scheduler
        batch, kv = scheduler.batch, scheduler.kv
        rows = batch.order
        running = int(rows.size)
        if not self.possible or not running or scheduler.num_waiting or scheduler._plan is not None:
            return 0
        length = batch.length[rows]
        if running > scheduler.config.max_num_batched_tokens or batch.own_stops[rows].any():
            return 0
        if (length - batch.computed[rows] != 1).any() or (length == batch.prompt_length[rows]).any():
            return 0
        count = min(int((batch.max_length[rows] - length).min()), LONGEST)
        # Every row crosses an edge at most once in block_size steps, so this many steps need no look at each row.
        available = kv.available
        if -(-count // batch.block_size) * running <= available:
            return count
        held = batch.held[rows]
        while count > 0 and int(np.maximum(-(-(length + count - 1) // batch.block_size) - held, 0).sum()) > available:
            count //= 2
        return count

    def take(self, count: int, tokens: IntArray) -> list[Sequence]:
        """Take `count` steps, at most `steps()`; row i of `batch.order` samples `tokens[i]` in each. Who ended."""
        scheduler = self.scheduler
        batch, totals = scheduler.batch, scheduler.totals
        rows = batch.order
        scheduler.kv.begin_step()
        length, computed = batch.length[rows], batch.computed[rows]
        after = computed + count
        self._give_blocks(rows, computed, after)
        whole = after // batch.block_size
        batch.tokens[rows[:, None], length[:, None] + np.arange(count)] = tokens[:, None]
        ahead = length + count
        batch.length[rows] = ahead
        for index in np.flatnonzero(whole > computed // batch.block_size).tolist():
            row = int(rows[index])
            scheduler.kv.register(batch.leases[row], batch.tokens[row], batch.block_table[row], int(whole[index]))
        batch.computed[rows] = after
        totals.steps += count
        totals.scheduled_tokens += count * int(rows.size)
        totals.generation_tokens += count * int(rows.size)
        scheduler.step = None
        ends = ahead >= batch.max_length[rows]
        if not ends.any():
            return []
        ended: list[Sequence] = batch.occupant[rows[ends]].tolist()
        for sequence in ended:
            scheduler._end(sequence, FinishReason.LENGTH)
        return ended

    def _give_blocks(self, rows: IntArray, computed: IntArray, after: IntArray) -> None:
        """Allocate for all steps at once; each block goes where it had gone step by step."""
        batch, size = self.scheduler.batch, self.scheduler.batch.block_size
        held = batch.held[rows]
        needs = np.maximum(-(-after // size) - held, 0)
        total = int(needs.sum())
        if not total:
            return
        blocks: npt.NDArray[np.int32] = np.array(self.scheduler.kv.allocate(total), np.int32)
        index = np.repeat(np.arange(rows.size), needs)
        column = held[index] + np.arange(total) - np.repeat(np.cumsum(needs) - needs, needs)
        when = column * size - computed[index]  # the step in which the block's first token is computed
        turn = np.argsort(when, kind="stable")
        batch.block_table[rows[index[turn]], column[turn]] = blocks
        batch.held[rows] = held + needs
