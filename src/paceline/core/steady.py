"""Steps taken without a plan, for drivers that know what every step takes and samples.

While every running row wants one token, a step is decided alike until a row ends, blocks run short or somebody comes.
A simulator may take many such steps at once, and the step that starts whoever came as well: the state afterwards is
what one schedule() and complete() after another would have left, but for the names of blocks, on which no decision
rests. Who is admitted is decided by the scheduler's own objects.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.core.batch import Batch
from paceline.core.compositions import MixedChunks
from paceline.core.orders import Order
from paceline.core.overload import Accept, MostRequests
from paceline.core.request import FinishReason, IntArray, RowArray, Sequence
from paceline.core.scheduler import Scheduler
from paceline.core.step import Step
from paceline.core.step_builder import Observer
from paceline.kv.counted import CountedCache

LONGEST = 4096  # steps taken at once, at most

# Under these, a step in which everybody decodes is the same whatever came before it.
_COMPOSITIONS: tuple[type, ...] = (MixedChunks,)
_OVERLOADS: tuple[type, ...] = (Accept, MostRequests)

_NOBODY: RowArray = np.zeros(0, np.intp)

# As methods of short arrays, these take twice as long.
_sum, _least = np.add.reduce, np.minimum.reduce


def _rests(waiting: Order) -> bool:
    """Does an order take no notice of steps in which it is not asked?"""
    return not hasattr(waiting, "begin") and not hasattr(waiting, "generated")


class Started(NamedTuple):
    """A row that takes part in a step for the first time."""

    row: int
    start: int  # tokens whose K/V exist
    tokens: int  # computed in the step
    samples: bool  # it is the end of the known tokens


class _Rows:
    """The running rows, all of which decode. Steps go by as `ticks`; what is kept of each stays as it is meanwhile."""

    __slots__ = ("base", "context", "edge", "last", "least", "rows", "ticks")

    def __init__(self, batch: Batch) -> None:
        rows = batch.order
        computed = batch.computed.take(rows)
        self.ticks = 0
        self.rows = rows  # `batch.order` itself: another object there means other rows
        self.base = computed  # tokens with K/V, and `ticks` more; known tokens are one more than these
        self.last = batch.max_length.take(rows) - batch.length.take(rows)  # tick at which the row ends
        self.edge = batch.held.take(rows) * batch.block_size - computed  # tick up to which its blocks last
        self.least = int(_least(self.last))
        self.context = int(_sum(computed))  # tokens with K/V of all together

    def join(self, batch: Batch, row: int) -> None:
        """A row that has computed all it knows in the step of this tick is like the others from here on."""
        computed = int(batch.computed[row])
        last = self.ticks + int(batch.max_length[row] - batch.length[row]) - 1
        self.base = _with(self.base, computed - self.ticks)
        self.last = _with(self.last, last)
        self.edge = _with(self.edge, self.ticks + int(batch.held[row]) * batch.block_size - computed)
        self.least = min(self.least, last)
        self.context += computed

    def leave(self, order: RowArray) -> bool:
        """Without those that have ended; `order` are the others. False: nobody is left."""
        stay = self.last > self.ticks
        self.rows = order
        self.base, self.last, self.edge = self.base[stay], self.last[stay], self.edge[stay]
        if not self.last.size:
            return False
        self.least = int(_least(self.last))
        return True


def _with(column: IntArray, value: int) -> IntArray:
    longer = np.empty(column.size + 1, np.int32)
    longer[:-1] = column
    longer[-1] = value
    return longer


class SteadyDecode:
    """Asks a scheduler how many alike decode steps are ahead, and takes them.

    The caller writes what a sequence is going to sample into `batch.tokens` behind its known tokens when it enters,
    and calls `settle` before it asks anything else of the scheduler than to `add`.
    """

    def __init__(self, scheduler: Scheduler, late: bool = False) -> None:
        """`late`: enter blocks into the cache's index only when their sequence ends, or when a step may have to preempt
        somebody. For when no other sequence can ever ask for them."""
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
        self._admits = self.possible and not scheduler.config.num_host_blocks and not scheduler.builder.may_displace
        self._late = late
        self._counted = isinstance(scheduler.kv, CountedCache)  # block tables say nothing
        self._unregistered = False
        self._known: _Rows | None = None
        self._started: list[Started] | None = None  # in the step that was begun

    # -- who runs ---------------------------------------------------------------------------------------------------

    def _rows(self) -> _Rows | None:
        """The running rows, if all of them want one token and only their length can end them."""
        scheduler = self.scheduler
        batch, known = scheduler.batch, self._known
        rows = batch.order
        if known is not None and known.rows is rows:
            return known
        self._known = None
        if not self.possible or not 0 < rows.size <= scheduler.config.max_num_batched_tokens:
            return None
        if scheduler._plan is not None or not scheduler.entrance.idle:
            return None
        length, computed = batch.length.take(rows), batch.computed.take(rows)
        if (
            int((length - computed).max()) != 1
            or batch.own_stops[rows].any()
            or (length == batch.prompt_length[rows]).any()
        ):
            return None
        self._known = _Rows(batch)
        return self._known

    @property
    def rows(self) -> RowArray:
        """Rows that decode, in order of admission; those a step that was begun started are not among them yet."""
        return _NOBODY if self._known is None else self._known.rows

    @property
    def context(self) -> int:
        """Tokens with K/V of these rows, all together."""
        return 0 if self._known is None else self._known.context

    @property
    def _available(self) -> int:
        """Blocks that a step may take without a word in its plan: what evicting moves down a tier needs one."""
        kv = self.scheduler.kv
        return kv.available if kv.lower is None else kv.free

    # -- many steps with the same rows ------------------------------------------------------------------------------

    def steps(self) -> int:
        """Steps from here on in which every running row decodes one token, up to and with the first in which one
        ends by its length. 0: the next step has to be scheduled, or begun."""
        scheduler = self.scheduler
        if len(scheduler.waiting) or (known := self._rows()) is None or scheduler.num_waiting:
            return 0
        count = min(known.least - known.ticks, LONGEST)
        # Every row crosses an edge at most once in block_size steps: as a rule there is no need to look at each.
        size, available = scheduler.batch.block_size, self._available
        if -(-count // size) * known.rows.size <= available:
            return count
        while count > 0 and int(np.maximum(-((known.edge - known.ticks - count) // size), 0).sum()) > available:
            count //= 2
        return count

    def take(self, count: int, now: float) -> list[Sequence]:
        """Take `count` steps, at most `steps()`; the last is over at `now`. Who ended, in order of admission."""
        scheduler, known = self.scheduler, self._known
        assert known is not None
        scheduler.kv.begin_step()
        self._compute(known, count)
        totals = scheduler.totals
        totals.steps += count
        totals.scheduled_tokens += count * known.rows.size
        scheduler.step = None
        return self._generated(known, count, now)

    def _compute(self, known: _Rows, count: int) -> None:
        """Every row computes `count` tokens, and is given the blocks for them. What is known grows as much."""
        batch = self.scheduler.batch
        size = batch.block_size
        known.ticks += count
        known.context += count * known.rows.size
        index = (known.edge < known.ticks).nonzero()[0]
        if index.size:
            needs = -((known.edge[index] - known.ticks) // size)
            if self._counted:
                self.scheduler.kv.allocate(int(_sum(needs)))
                batch.held[known.rows[index]] += needs
            else:
                self.scheduler.builder.give_blocks(known.rows[index], needs)
            known.edge[index] += needs * size
        if self._late:
            self._unregistered = True
            return
        computed = known.base + known.ticks
        for at in (computed % size < count).nonzero()[0].tolist():
            self._register(int(known.rows[at]), int(computed[at]))

    def _generated(self, known: _Rows, count: int, now: float) -> list[Sequence]:
        """Every row has got `count` tokens more; who ended by that."""
        scheduler = self.scheduler
        scheduler.now = scheduler.entrance.now = now
        scheduler.totals.generation_tokens += count * known.rows.size
        return self._end(known) if known.least <= known.ticks else []

    def _end(self, known: _Rows) -> list[Sequence]:
        scheduler = self.scheduler
        batch = scheduler.batch
        ended: list[Sequence] = []
        for at in (known.last <= known.ticks).nonzero()[0].tolist():
            row, computed = int(known.rows[at]), int(known.base[at]) + known.ticks
            batch.computed[row], batch.length[row] = computed, computed + 1
            known.context -= computed
            if self._late:
                self._register(row, computed)
            sequence = batch.occupant[row]
            scheduler._end(sequence, FinishReason.LENGTH)
            ended.append(sequence)
        if not known.leave(batch.order):
            self._known = None
        return ended

    # -- a step that may start somebody -----------------------------------------------------------------------------

    def begin(self, now: float) -> list[Started] | None:
        """A step in which every running row decodes one token and others start, if the discipline lets them.
        `finish` ends it. None, and nothing has happened: it has to be scheduled."""
        scheduler, known = self.scheduler, self._rows()
        if known is None or not self._admits:
            return None
        available = self._available
        if known.rows.size > available and int(np.count_nonzero(known.edge <= known.ticks)) > available:
            return None
        rows, batch, builder = known.rows, scheduler.batch, scheduler.builder
        composition = scheduler.discipline.composition
        assert isinstance(composition, MixedChunks)
        scheduler.now = now
        scheduler.entrance.open(now)
        scheduler.kv.begin_step()
        step = builder.step = Step(
            scheduler.totals.steps, now, scheduler.config.max_num_batched_tokens, builder._chunk_limit()
        )
        self._compute(known, 1)
        batch.computed[rows] = batch.length[rows] = known.base + known.ticks
        step.rows, step.counts = rows.tolist(), [1] * rows.size
        step.budget -= rows.size
        step.sizes = composition.buckets
        builder.admit(step)
        scheduler._decided(step, now)
        scheduler.totals.steps += 1
        scheduler.totals.scheduled_tokens += scheduler.config.max_num_batched_tokens - step.budget
        self._started = self._new_rows(step, int(rows.size))
        return self._started

    def _new_rows(self, step: Step, before: int) -> list[Started]:
        computed, length = self.scheduler.batch.computed, self.scheduler.batch.length
        started = []
        for row, count in zip(step.rows[before:], step.counts[before:], strict=True):
            end = int(computed[row])
            started.append(Started(int(row), end - int(count), int(count), end == int(length[row])))
        return started

    def finish(self, now: float) -> list[Sequence]:
        """The step that was begun is over. Who ended, those that decoded first."""
        known, started = self._known, self._started
        assert known is not None and started is not None
        self._started = None
        if not all(one.samples for one in started):
            return self._finish_cut(known, [one.row for one in started if one.samples], now)
        if started:
            known.rows = self.scheduler.batch.order
            for one in started:
                known.join(self.scheduler.batch, one.row)
            self._first_tokens([one.row for one in started], now)
        return self._generated(known, 1, now)

    def _first_tokens(self, rows: list[int], now: float) -> None:
        batch, scheduler = self.scheduler.batch, self.scheduler
        for row in rows:
            if batch.length[row] == batch.prompt_length[row]:
                scheduler._first_token(batch.occupant[row], now)

    def _finish_cut(self, known: _Rows, new: list[int], now: float) -> list[Sequence]:
        """As `finish`, where a prompt is cut: its row goes on with it, so the rows are no longer alike."""
        scheduler = self.scheduler
        batch = scheduler.batch
        self._known = None
        self._first_tokens(new, now)
        rows = np.concatenate((known.rows, np.array(new, np.int32)))
        scheduler.now = scheduler.entrance.now = now
        scheduler.totals.generation_tokens += int(rows.size)
        length = batch.length[rows] + 1
        batch.length[rows] = length
        ended: list[Sequence] = []
        for row in rows[length >= batch.max_length[rows]].tolist():
            if self._late:
                self._register(row, int(batch.computed[row]))
            sequence = batch.occupant[row]
            scheduler._end(sequence, FinishReason.LENGTH)
            ended.append(sequence)
        return ended

    # -- giving the scheduler back ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Make the scheduler's state what it would be by itself; before a step is scheduled or anything is asked."""
        batch, known = self.scheduler.batch, self._known
        if known is not None:
            if self._started is None:
                computed = known.base + known.ticks
                batch.computed[known.rows], batch.length[known.rows] = computed, computed + 1
            self._known = None
        if not self._unregistered:
            return
        scheduler = self.scheduler
        config = scheduler.config
        most = config.max_num_batched_tokens // batch.block_size + 2 * config.max_num_seqs
        if scheduler.kv.available <= most:
            self._unregistered = False
            for row in batch.order.tolist():
                self._register(row, int(batch.computed[row]))

    def _register(self, row: int, computed: int) -> None:
        batch = self.scheduler.batch
        lease = batch.leases[row]
        whole = computed // batch.block_size
        if whole > lease.registered:
            self.scheduler.kv.register(lease, batch.tokens[row], batch.block_table[row], whole)
