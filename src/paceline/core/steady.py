"""Many decode steps at once, for drivers that know what every step takes and samples.

When nobody waits and every running row wants one token, step after step is decided alike until a row ends or blocks
run short. A simulator may then take those steps together: the state afterwards is what one schedule() and complete()
after another would have left, but for the names of blocks, on which no decision rests.
"""

from __future__ import annotations

import numpy as np

from paceline.core.compositions import MixedChunks
from paceline.core.orders import Order
from paceline.core.overload import Accept, MostRequests
from paceline.core.request import FinishReason, IntArray, Sequence
from paceline.core.scheduler import Scheduler
from paceline.core.step_builder import Observer

LONGEST = 4096  # steps taken at once, at most

# Under these, a step in which nobody waits and everybody decodes is the same whatever came before it.
_COMPOSITIONS: tuple[type, ...] = (MixedChunks,)
_OVERLOADS: tuple[type, ...] = (Accept, MostRequests)


def _rests(waiting: Order) -> bool:
    """Does an order take no notice of steps while nobody waits?"""
    return not hasattr(waiting, "begin") and not hasattr(waiting, "generated")


class SteadyDecode:
    """Asks a scheduler how many alike decode steps are ahead, and takes them.

    The caller writes what a sequence is going to sample into `batch.tokens` behind its known tokens when it enters.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        row = scheduler.discipline
        self.possible = (
            type(row.composition) in _COMPOSITIONS
            and _rests(scheduler.waiting)
            and type(row.overload) in _OVERLOADS
            and not row.together
            and not isinstance(row.admission, Observer)
            and not isinstance(row.eviction, Observer)
            and not scheduler.config.eos_token_ids
        )
        self._unregistered = False

    def steps(self, again: bool = False) -> int:
        """Steps from here on in which every running row decodes one token, up to and with the first in which one
        ends by its length. 0: the next step has to be scheduled.

        `again`: the last thing done was to take such steps (the rows need no second look).
        """
        scheduler = self.scheduler
        batch = scheduler.batch
        rows = batch.order
        running = rows.size
        if not self.possible or not running or scheduler.num_waiting or scheduler._plan is not None:
            return 0
        if not scheduler.entrance.idle:
            return 0
        length = batch.length[rows]
        if not again and (
            running > scheduler.config.max_num_batched_tokens
            or int((length - batch.computed[rows]).max()) != 1
            or batch.own_stops[rows].any()
            or (length == batch.prompt_length[rows]).any()
        ):
            return 0
        count = min(int((batch.max_length[rows] - length).min()), LONGEST)
        # Every row crosses an edge at most once in block_size steps: as a rule there is no need to look at each.
        size, available = batch.block_size, scheduler.kv.available
        if scheduler.kv.lower is not None:
            available = scheduler.kv.free  # what evicting moves down a tier is for a step's plan to say
        if -(-count // size) * running <= available:
            return count
        held = batch.held[rows]
        while count > 0 and int(np.maximum(-(-(length + (count - 1)) // size) - held, 0).sum()) > available:
            count //= 2
        return count

    def take(self, count: int, now: float, late: bool = False) -> list[Sequence]:
        """Take `count` steps, at most `steps()`; the last is over at `now`. Who ended, in order of admission.

        `late`: enter blocks into the cache's index only when their sequence ends, or at `settle`. For when no other
        sequence can ever ask for them.
        """
        scheduler = self.scheduler
        batch, totals = scheduler.batch, scheduler.totals
        rows = batch.order
        scheduler.kv.begin_step()
        computed = batch.computed[rows]
        after = computed + count
        ahead = after + 1
        self._give_blocks(rows, after)
        batch.computed[rows] = after
        batch.length[rows] = ahead
        if late:
            self._unregistered = True
        else:
            size = batch.block_size
            for row in rows[after // size > computed // size].tolist():
                self._register(row)
        totals.steps += count
        totals.scheduled_tokens += count * rows.size
        totals.generation_tokens += count * rows.size
        scheduler.step = None
        scheduler.now = now
        ends = ahead >= batch.max_length[rows]
        ended: list[Sequence] = []
        for row in rows[ends].tolist():
            sequence = batch.occupant[row]
            if late:
                self._register(row)
            scheduler._end(sequence, FinishReason.LENGTH)
            ended.append(sequence)
        return ended

    def settle(self) -> None:
        """Before a step is scheduled: enter what was left for later, if that step may have to preempt somebody."""
        if not self._unregistered:
            return
        scheduler = self.scheduler
        batch, config = scheduler.batch, scheduler.config
        most = config.max_num_batched_tokens // batch.block_size + 2 * config.max_num_seqs
        if scheduler.kv.available <= most:
            self._unregistered = False
            for row in batch.order.tolist():
                self._register(row)

    def _register(self, row: int) -> None:
        batch = self.scheduler.batch
        lease = batch.leases[row]
        whole = int(batch.computed[row]) // batch.block_size
        if whole > lease.registered:
            self.scheduler.kv.register(lease, batch.tokens[row], batch.block_table[row], whole)

    def _give_blocks(self, rows: IntArray, after: IntArray) -> None:
        batch, size = self.scheduler.batch, self.scheduler.batch.block_size
        needs = (after + (size - 1)) // size - batch.held[rows]
        index = needs > 0
        short = rows[index]
        if short.size:
            self.scheduler.builder.give_blocks(short, needs[index])
