"""What a composition calls to fill a step: it deals tokens, rows and blocks to running and waiting sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paceline.core.admitting import Admitting
from paceline.core.batch import Batch
from paceline.core.config import SchedulerConfig
from paceline.core.costs import Costs
from paceline.core.discipline import Discipline
from paceline.core.hits import NO_MATCH, Hits
from paceline.core.keeper import HOLD, RECOMPUTE, Keeper
from paceline.core.orders import Order
from paceline.core.plan import StepPlan, StepResult
from paceline.core.preemption import preemption
from paceline.core.promotions import Promotions
from paceline.core.request import IntArray, RowArray, Sequence, SequenceState
from paceline.core.stats import Counters
from paceline.core.step import Step
from paceline.core.without import Without
from paceline.kv.interface import KVCache, Match
from paceline.kv.tiers import Tiers


@runtime_checkable
class Observer(Protocol):
    """An admission or eviction that watches every step."""

    def observe(self, builder: StepBuilder, step: Step) -> None:
        """The step has been decided."""
        ...


FEW = 16  # rows up to which a loop costs less than numpy's fixed costs


class StepBuilder:
    """One per scheduler, sharing its state. Decision objects read `batch`, `kv`, `waiting` and `config` from here."""

    def __init__(
        self,
        config: SchedulerConfig,
        discipline: Discipline,
        kv: KVCache,
        batch: Batch,
        waiting: Order,
        totals: Counters,
        expire: Callable[[Sequence, str], None],
    ) -> None:
        self.config = config
        self.discipline = discipline
        self.kv = kv
        self.batch = batch
        self.waiting = waiting
        self.totals = totals
        self.expire = expire  # ends a waiting sequence that is too late, with the reason in words
        self.tiers = Tiers(config.num_host_blocks, config.num_disk_blocks, config.kv_identity.encode())
        if config.num_host_blocks and config.enable_prefix_caching:
            kv.lower = self.tiers
        self.keeper = Keeper(kv, batch, self.tiers, totals)
        self.costs = Costs()
        self.promotions = Promotions(self.tiers, self.costs, config.block_size, config.kv_load)
        self.hits = Hits(kv, batch, self.keeper, self.promotions)
        self.how = preemption(discipline.eviction.how)
        self.may_displace = discipline.displacement.displace and hasattr(waiting, "level")
        self.memory: Any = None  # what the composition remembers from step to step
        self.estimates: Any = None  # what the admission remembers from step to step
        self.step: Step | None = None  # the one being built, or the last one
        self.trying: Sequence | None = None  # who is being admitted right now
        if (attach := getattr(waiting, "attach", None)) is not None:
            attach(self)
        self._begin: Callable[[StepBuilder, float], None] | None = getattr(waiting, "begin", None)
        self.admitting = Admitting(self)
        self._observers = [part for part in (discipline.admission, discipline.eviction) if isinstance(part, Observer)]

    def build(self, now: float) -> Step:
        """Decide one step."""
        self.trying = None
        self.kv.begin_step()
        self.keeper.host.begin_step()
        if self._begin is not None:
            self._begin(self, now)
        step = self._compose(now)
        while not len(step.rows) and not step.preempted and self.keeper.drop_newest_held():
            step = self._compose(now)  # held blocks are all that stands in the way
        for observer in self._observers:
            observer.observe(self, step)
        return step

    def _compose(self, now: float) -> Step:
        self.step = Step(self.totals.steps, now, self.config.max_num_batched_tokens, self._chunk_limit())
        self.discipline.composition.compose(self, self.step)
        return self.step

    def flush(self, now: float) -> Step:
        """A step without rows that takes cached contents a tier down, as much at once as the host can take."""
        kv, tiers = self.kv, self.tiers
        kv.begin_step()
        tiers.begin_step()
        if cached := kv.available - kv.free:
            lease = kv.open(NO_MATCH)
            blocks = kv.allocate(kv.free + min(cached, max(tiers.available, 1)))  # evicts them
            kv.release(lease, np.array(blocks, np.int32))
        else:
            tiers.flush()
        return Step(self.totals.steps, now, 0, 0)

    def moved(self, plan: StepPlan, result: StepResult) -> None:
        """A step's moves between tiers were made, and say what they cost."""
        totals, lost = self.totals, result.lost
        totals.demoted_blocks += len(self.tiers.moves.out)
        totals.disk_written_blocks += len(plan.to_disk)
        totals.disk_read_blocks += len(plan.from_disk)
        totals.disk_lost_blocks += len(lost)
        self.tiers.commit(lost)
        self.costs.observe(plan, result)

    # -- running sequences ------------------------------------------------------------------------------------------

    def _chunk_limit(self) -> int:
        """Most tokens of one prompt in a step; off when there is nobody to share the step with (after vLLM)."""
        config, everyone = self.config, len(self.batch) + len(self.waiting)
        limit = config.long_prefill_token_threshold
        if limit == 0 or everyone <= 1:
            return 0
        if config.long_prefill_token_threshold_adaptive:
            limit = max(limit, config.max_num_batched_tokens // everyone)
        return limit

    def run(self, step: Step, rows: RowArray, spare: int = 0) -> None:
        """Give running rows, in the order given, the tokens they want while the budget lasts; evict to make room.

        Beside others, a row only runs while `spare` blocks are free, whether it needs them or not.
        """
        spare = spare if len(self.batch) > 1 else 0
        if step.preempted:  # since the rows were listed, perhaps
            rows = self._still_running(step, rows)
        if not rows.size:
            return
        batch, everyone = self.batch, rows
        counts = batch.length[rows] - batch.computed[rows]
        if step.chunk_limit:
            counts = np.minimum(counts, step.chunk_limit)
        total = int(counts.sum())
        if total > step.budget:
            counts = np.clip(step.budget - (np.cumsum(counts) - counts), 0, counts)
            rows, counts = rows[counts > 0], counts[counts > 0]
            total = int(counts.sum())
        ends = batch.computed[rows] + counts
        needs = np.maximum(-(-ends // batch.block_size) - batch.held[rows], 0)
        blocks = int(needs.sum())
        beyond = max(spare - int(needs[-1]), 0) if rows.size else 0  # what the last row leaves unused
        if blocks + beyond > self.kv.available:
            self._run_one_by_one(step, everyone, spare)  # a victim's tokens may serve rows that the budget cut off
            return
        self.give_blocks(rows, needs)
        step.put_bulk(rows, counts, total)
        whole = ends // batch.block_size
        for index in np.flatnonzero(whole > batch.computed[rows] // batch.block_size).tolist():
            self.register(int(rows[index]), int(whole[index]))
        batch.computed[rows] = ends

    def _still_running(self, step: Step, rows: RowArray) -> RowArray:
        """Without rows that were emptied in this step, whoever has them now."""
        started = {sequence.row for sequence in (*step.new, *step.resumed)}
        return rows[[self.batch.occupant[row] is not None and row not in started for row in rows.tolist()]]

    def give_blocks(self, rows: RowArray, needs: IntArray) -> None:
        """Allocate for many rows at once, in their order."""
        batch = self.batch
        index = (needs > 0).nonzero()[0]
        if not index.size:
            return
        rows, needs = rows[index], needs[index]
        blocks = self.kv.allocate(int(needs.sum()))
        if rows.size <= FEW:
            at = 0
            for row, count in zip(rows.tolist(), needs.tolist(), strict=True):
                batch.give_blocks(row, blocks[at : at + count])
                at += count
            return
        if len(blocks) == rows.size:
            batch.block_table[rows, batch.held[rows]] = blocks
        else:
            column = np.arange(len(blocks)) - np.repeat(np.cumsum(needs) - needs, needs)
            batch.block_table[np.repeat(rows, needs), np.repeat(batch.held[rows], needs) + column] = blocks
        batch.held[rows] += needs

    def _run_one_by_one(self, step: Step, rows: RowArray, spare: int = 0) -> None:
        """As `run`, when blocks are short: each row in turn, preempting whom the discipline names."""
        batch, eviction = self.batch, self.discipline.eviction
        for row in rows.tolist():
            if step.budget <= 0:
                break
            if batch.occupant[row] is None:  # preempted for a row before it
                continue
            count = min(int(batch.length[row] - batch.computed[row]), step.chunk_limit or step.budget, step.budget)
            if self.make_room(step, row, count, spare if len(batch) > 1 else 0):
                self.extend(step, row, count)
            elif not eviction.yields_turn:
                break

    def make_room(self, step: Step, row: int, count: int, spare: int = 0) -> bool:
        """Preempt until the blocks for `count` more tokens are there. False when the row itself had to go."""
        batch = self.batch
        end = int(batch.computed[row]) + count
        while max(-(-end // batch.block_size) - int(batch.held[row]), spare) > self.kv.available:
            victim = self.victim(row)
            if (victim is None or victim == row) and self.keeper.drop_newest_held():
                continue
            if victim is None:
                return False
            self.preempt(step, batch.occupant[victim])
            if victim == row:
                return False
        return True

    def protected(self, row: int) -> bool:
        """Has it been preempted as often as it may be?"""
        most = self.config.max_preemptions
        return bool(most) and self.batch.occupant[row].preemptions >= most

    def victim(self, row: int) -> int | None:
        """Whom the discipline names so that `row` can grow; somebody protected only if all are."""
        eviction, order = self.discipline.eviction, self.batch.order
        choice = eviction.victim(self, row)
        if choice is None or not self.protected(choice):
            return choice
        started = [] if self.step is None else [one.row for one in (*self.step.new, *self.step.resumed)]
        others = [other for other in order.tolist() if other not in started and not self.protected(other)]
        if not others:
            return choice
        state: StepBuilder = Without(self, order[np.isin(order, [*others, row])])  # type: ignore[assignment]
        choice = eviction.victim(state, row)
        return others[-1] if choice is None or self.protected(choice) else choice

    def extend(self, step: Step, row: int, count: int, put: Callable[[int, int], None] | None = None) -> None:
        """Schedule `count` tokens of a row, whose blocks are available."""
        batch = self.batch
        end = int(batch.computed[row]) + count
        short = -(-end // batch.block_size) - int(batch.held[row])
        if short > 0:
            batch.give_blocks(row, self.kv.allocate(short))
        self.register(row, end // batch.block_size)
        batch.computed[row] = end
        (put or step.put)(row, count)

    def enlarge(self, step: Step, row: int, count: int) -> None:
        """Schedule `count` tokens more of a row that is in the step already; their blocks are available."""
        self.extend(step, row, count, step.put_more)

    def register(self, row: int, whole: int) -> None:
        """Enter the first `whole` blocks of a row into the cache's index; they are full after this step."""
        batch = self.batch
        lease = batch.leases[row]
        if whole > lease.registered:
            self.kv.register(lease, batch.tokens[row], batch.block_table[row], whole)

    # -- admission --------------------------------------------------------------------------------------------------

    def admit(self, step: Step, among: Iterable[Sequence] | None = None) -> None:
        """Start waiting sequences, in order or as `among` gives them, while budget, rows and blocks last."""
        self.admitting.admit(step, among)

    def candidates(self, step: Step) -> Iterable[Sequence]:
        """Waiting sequences in order, each once, while those admitted leave the queue."""
        return self.admitting.candidates()

    def try_admit(self, step: Step, sequence: Sequence, most: int | None = None, unit: int = 1) -> str | None:
        """Start the sequence in this step, with at most `most` tokens. A reason when it cannot.

        `unit`: where a prompt is cut, its part is a multiple of this many tokens.
        """
        return self.admitting.try_one(step, sequence, most, unit)

    def resume_kept(self, step: Step) -> None:
        """Bring held and swapped sequences back, in the order they arrived, until one does not fit."""
        self.admitting.resume_kept(step)

    def match(self, sequence: Sequence) -> Match:
        """What a waiting sequence need not compute if it starts now; one token at least is always left."""
        return self.hits.match(sequence)

    def lookup(self, sequence: Sequence) -> Match:
        """What the device's cache has of a sequence that is not running. Touches nothing."""
        return self.hits.lookup(sequence)

    # -- leaving the batch ------------------------------------------------------------------------------------------

    def preempt(self, step: Step, sequence: Sequence, how: str | None = None) -> None:
        """Take a running sequence off the batch. `how`: recompute, swap or hold; None: as the eviction says.

        Recompute: its K/V stay in the cache, unlocked, until evicted. So it is for who started in this very step, as
        what it shares may not be written yet, and where a swap finds no host blocks.
        """
        row, batch, eviction = sequence.row, self.batch, self.discipline.eviction
        unwritten = step.take_out(row)
        self.undo(row, unwritten + self.not_copied(step, sequence))
        sequence.lost_tokens = int(batch.computed[row])
        step.copies = [copy for copy in step.copies if copy[1] not in batch.blocks(row)]
        started = sequence in step.new or sequence in step.resumed
        how = self.keeper.keep(step, sequence, RECOMPUTE if started else how or self.how.choose(self, sequence, True))
        if how == HOLD:
            batch.leave(sequence)
            sequence.key = None
        else:
            self.vacate(sequence)
        sequence.state = SequenceState.PREEMPTED
        sequence.account.leaves(step.now, step.number)
        sequence.preemptions += 1
        self.totals.preemptions += 1
        step.preempted.append((sequence, how))
        (self.waiting.resume if eviction.front else self.waiting.add)(sequence)

    def not_copied(self, step: Step, sequence: Sequence) -> int:
        """Tokens of a sequence that were to come from the host in this step and now will not."""
        promoted = step.promoted.pop(sequence.id, 0)
        if not promoted and sequence.id not in step.found:
            return 0
        step.swap_in = [copy for copy in step.swap_in if copy[1] not in self.batch.blocks(sequence.row)]
        if promoted:
            return promoted * self.batch.block_size
        return step.kept[sequence.id] - step.found.pop(sequence.id) * self.batch.block_size

    def undo(self, row: int, count: int) -> None:
        """The last `count` tokens scheduled for a row are not going to be computed."""
        if count:
            batch = self.batch
            batch.computed[row] -= count
            self.kv.unregister(batch.leases[row], batch.block_table[row], int(batch.computed[row]) // batch.block_size)

    def vacate(self, sequence: Sequence) -> None:
        """Give back the row and the blocks."""
        batch, row = self.batch, sequence.row
        self.kv.release(batch.leases[row], batch.blocks(row))
        batch.leave(sequence)
        sequence.lease = None
        sequence.key = None
