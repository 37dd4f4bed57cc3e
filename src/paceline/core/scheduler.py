"""The scheduler: a deterministic state machine over waiting and running sequences.

The same class drives the engine, `replay` and simulations. It reads no clock and draws no random number; what
differs between disciplines is in the objects of a `Discipline`; `StepBuilder` deals tokens and blocks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from paceline.core.account import Account
from paceline.core.batch import Batch
from paceline.core.config import SchedulerConfig
from paceline.core.discipline import Discipline
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.entrance import Entrance
from paceline.core.fits import check_fits, check_ids, max_length
from paceline.core.inspection import look, prove
from paceline.core.orders import Order
from paceline.core.plan import StepPlan, StepResult
from paceline.core.queue_limits import refusal
from paceline.core.quotas import Quotas
from paceline.core.reasons import reasons_to_wait
from paceline.core.request import (
    FinishReason,
    IntArray,
    Request,
    RowArray,
    Sequence,
    SequenceState,
    StepEvents,
)
from paceline.core.stats import Counters, SchedulerStats
from paceline.core.step import Step
from paceline.core.step_builder import StepBuilder
from paceline.core.stops import stopped
from paceline.errors import RequestError
from paceline.kv.chain import ChainCache
from paceline.kv.counted import CountedCache
from paceline.kv.interface import KVCache
from paceline.kv.radix import RadixCache

CACHES: dict[str, Callable[..., KVCache]] = {"radix": RadixCache, "chain": ChainCache, "counted": CountedCache}


class Scheduler:
    """plan = schedule(now); result = executor.execute(plan); events = complete(result, now).

    `add`, `abort` and `finish` may be called at any time between these. Times are seconds on the caller's clock.
    """

    def __init__(
        self, config: SchedulerConfig, discipline: Discipline | str = "paceline", on_disk: Iterable[bytes] = ()
    ) -> None:
        """`on_disk`: content keys that earlier runs left in the disk tier, the least recently used first."""
        self.config = config
        self.discipline = discipline_named(discipline) if isinstance(discipline, str) else discipline
        self.discipline.check(config)
        self.kv: KVCache = CACHES[self.discipline.cache](
            config.num_blocks, config.block_size, enable=config.enable_prefix_caching
        )
        self.batch = Batch(config.max_num_seqs, config.max_model_len, config.block_size)
        self.waiting: Order = self.discipline.policy.queue()
        self.entrance = Entrance(self.discipline.limits, self.waiting, self.batch)
        self.totals = Counters()
        self.builder = StepBuilder(config, self.discipline, self.kv, self.batch, self.waiting, self.totals, self.expire)
        self.builder.tiers.adopt(on_disk)
        self.step: Step | None = None  # the last one scheduled; its plan is in flight until complete() or fail()
        self._plan: StepPlan | None = None
        self._left_in_flight = False  # a row of the plan in flight was emptied since
        self._sequences: dict[str, Sequence] = {}  # every live sequence by id
        self._requests: dict[str, list[Sequence]] = {}  # live sequences of every request, by request id
        self._siblings: dict[str, list[Sequence]] = {}  # BLOCKED ones by the id of the sequence they wait for
        self._ended: list[Sequence] = []  # ended by the scheduler outside complete(), and not reported yet
        self.tenants: dict[str, int] = {}  # every tenant seen, with its index, in order of first appearance
        self._submitted = 0
        self._submitted_then = 0  # how many had been when the last step was scheduled
        self.now = 0.0  # the latest time the caller told
        self._undone: set[str] = set()  # sequences of the last step, where that was not executed
        self._generated: Callable[[Batch, RowArray], None] | None = getattr(self.waiting, "generated", None)
        self._forgotten: Callable[[Sequence], None] | None = getattr(self.waiting, "ended", None)
        self._eos = np.array(config.eos_token_ids, np.int32)

    # -- the door ---------------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> list[Sequence]:
        """Take a request in. Returns its sequences.

        RequestError, with the numbers, for one that can never run or whose id is already here.
        """
        indexes = list(range(request.params.n)) if request.resumed is None else sorted(request.resumed)
        self.now = now
        try:
            check_ids(request, indexes, self._requests, self._sequences)
            check_fits(self.config, self.discipline.admission, request)
            if (reason := self.discipline.overload.refuse(self, request, now)) is not None:
                raise refusal(reason, "overloaded", self.entrance.retry_after(now))
            self.entrance.check(request, self.tenants.get(request.tenant, -1), now)
        except RequestError:
            self.totals.refused += 1
            raise
        sequences = []
        tenant = self.tenants.setdefault(request.tenant, len(self.tenants))
        for index in indexes:
            sequence = Sequence(request, index, self._submitted)
            self._submitted += 1
            sequence.max_length = max_length(self.config, request)
            sequence.submitted = now
            sequence.account = Account(now)
            sequence.tenant = tenant
            sequence.priority = self.discipline.overload.priority(request, self.discipline.order)
            self._sequences[sequence.id] = sequence
            sequences.append(sequence)
        if not sequences:
            return []
        self._requests[request.id] = list(sequences)
        if self.discipline.forks and request.resumed is None and len(sequences) > 1:
            self._siblings[sequences[0].id] = sequences[1:]
            for sibling in sequences[1:]:
                sibling.state = SequenceState.BLOCKED
            self.entrance.enter(sequences, sequences[:1], now)
        else:
            self.entrance.enter(sequences, list(sequences), now)
        return sequences

    def set_quotas(self, quotas: Quotas, now: float) -> None:
        """What each tenant may use from now on; may be called again with others."""
        self.now = now
        self.entrance.set_quotas(quotas, now)
        if (reweigh := getattr(self.waiting, "reweigh", None)) is not None:
            reweigh(quotas.weights, self.tenants)

    def abort(self, request_id: str, now: float) -> list[Sequence]:
        """End all live sequences of a request, in whatever state. Unknown or ended requests: nothing happens."""
        self.now = now
        sequences = list(self._requests.get(request_id, ()))
        for sequence in sequences:
            self._end(sequence, FinishReason.ABORT)
        return sequences

    def finish(self, sequence_id: str, reason: FinishReason, now: float) -> bool:
        """End one sequence from outside (a stop string was found). False when it had ended already."""
        self.now = now
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return False
        self._end(sequence, reason)
        return True

    def expire(self, sequence: Sequence, reason: str) -> None:
        """End a live sequence because it is too late; `reason` says in words what ran out.

        For waiting ones at any time, for others not while a step is being scheduled. `take_ended` reports it.
        """
        sequence.finish_detail = reason
        self._end(sequence, FinishReason.EXPIRED)
        self._ended.append(sequence)

    def take_ended(self) -> list[Sequence]:
        """What the scheduler itself ended since the last call, other than in complete(). Ask after schedule()."""
        ended, self._ended = self._ended, []
        return ended

    # -- a step -----------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step. None when there is nothing that can run."""
        if self._plan is not None:
            raise RuntimeError("schedule() before complete() or fail() of the step in flight")
        self.now = now
        if self.discipline.together:
            self._ended += self._end_batch()  # who was not done has left since the last step
        self._expire_late(now)
        self.entrance.open(now)
        step = self.builder.build(now)
        self._decided(step, now)
        self._plan = step.plan(self.batch, self.builder.tiers.moves)
        self._left_in_flight = False
        if self._plan is None:
            step.wake = min((time for time in (step.wake, self.entrance.next) if time is not None), default=None)
        else:
            self.totals.steps += 1
            self.totals.scheduled_tokens += self.config.max_num_batched_tokens - step.budget
        return self._plan

    def _decided(self, step: Step, now: float) -> None:
        """Who starts in the step has left the queue."""
        self.entrance.close(step, now)
        for sequence in (*step.new, *step.resumed):
            if sequence.first_scheduled is None:
                sequence.first_scheduled = now
        self.step = step
        self._undone = set()
        self._submitted_then = self._submitted

    def _expire_late(self, now: float) -> None:
        """End whose time is up. An answer that is complete and only waits for its batch leaves as it is."""
        for sequences, reason in self.entrance.late(now):
            for sequence in reversed(sequences):
                if sequence.row >= 0 and self.batch.done[sequence.row]:
                    self._end(sequence, sequence.finish_reason or FinishReason.LENGTH)
                    self._ended.append(sequence)
                else:
                    self.expire(sequence, reason)

    def flush(self, now: float) -> StepPlan | None:
        """Before a clean end: a step that takes cached contents a tier down, to be executed and completed as any other.

        None: whatever disk has room for is there.
        """
        if self._plan is not None:
            raise RuntimeError("flush() before complete() or fail() of the step in flight")
        if not self.config.num_disk_blocks:
            return None
        self.now = now
        self.step = self.builder.flush(now)
        self._plan = self.step.plan(self.batch, self.builder.tiers.moves)
        self._left_in_flight = False
        return self._plan

    # -- leaving the batch ------------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.state is SequenceState.RUNNING:
            self.builder.vacate(sequence)
            self._left_in_flight = self._plan is not None
        elif sequence.state is not SequenceState.BLOCKED:
            if not self.entrance.let_go(sequence):
                self.waiting.remove(sequence)
            self.builder.keeper.drop(sequence)
        for sibling in reversed(self._siblings.pop(sequence.id, [])):  # the leader ends before it computed the prompt
            if sibling.id in self._sequences:
                self._unblock(sibling)
        sequence.state = SequenceState.FINISHED
        sequence.finish_reason = reason
        del self._sequences[sequence.id]
        live = self._requests[sequence.request.id]
        live.remove(sequence)
        if not live:
            del self._requests[sequence.request.id]
            self.entrance.ended(sequence.request.id, reason in (FinishReason.STOP, FinishReason.LENGTH))
        sequence.account.ends(self.now, self.totals.steps)
        self.totals.ended(reason)
        if self._forgotten is not None:
            self._forgotten(sequence)

    def _unblock(self, sibling: Sequence) -> None:
        if sibling.state is SequenceState.BLOCKED:
            sibling.state = SequenceState.WAITING
            if not self.entrance.holds_back(sibling):
                self.waiting.resume(sibling)

    # -- after a step -----------------------------------------------------------------------------------------------

    def complete(self, result: StepResult, now: float) -> StepEvents:
        """Take the sampled tokens in; end what is finished. Sequences that left since `schedule` are passed over."""
        plan, batch = self._plan, self.batch
        if plan is None or self.step is None:
            raise RuntimeError("complete() without a step in flight")
        self.now = now
        rows = plan.rows[plan.samples].astype(np.intp)
        tokens = np.asarray(result.tokens, np.int32)
        if tokens.size != rows.size:
            raise ValueError(f"the step samples {rows.size} tokens, the executor returned {tokens.size}")
        if self.config.num_host_blocks:
            self.builder.moved(plan, result)
        self._plan = None
        sampled = np.arange(rows.size, dtype=np.int32)
        if self._left_in_flight:
            stay = np.array([batch.occupant[row] is not None for row in rows.tolist()], np.bool_)
            rows, tokens, sampled = rows[stay], tokens[stay], sampled[stay]
        length = batch.length[rows]
        batch.tokens[rows, length] = tokens
        length = length + 1
        batch.length[rows] = length
        sequences = batch.occupant[rows]
        self.totals.generation_tokens += rows.size
        if self._generated is not None:
            self._generated(batch, rows)
        self.entrance.generated(rows, now)
        for index in np.flatnonzero(length == batch.prompt_length[rows] + 1).tolist():
            self._first_token(sequences[index], now)
        finished = self._finish_rows(rows, tokens, length, sequences)
        return StepEvents(sequences=sequences, tokens=tokens, sampled=sampled, finished=finished)

    def _first_token(self, sequence: Sequence, now: float) -> None:
        if sequence.first_token is None:
            sequence.first_token = now
            sequence.account.first_token(now)
        for sibling in reversed(self._siblings.pop(sequence.id, [])):
            if sibling.id in self._sequences:
                sibling.leader, sibling.leader_lease = sequence, sequence.lease
                self._unblock(sibling)

    def _finish_rows(
        self, rows: RowArray, tokens: IntArray, length: IntArray, sequences: np.typing.NDArray[np.object_]
    ) -> list[Sequence]:
        batch = self.batch
        stops = stopped(batch, rows, tokens, length, self._eos)
        ends = stops | (length >= batch.max_length[rows])
        finished = []
        for index in np.flatnonzero(ends).tolist():
            reason = FinishReason.STOP if stops[index] else FinishReason.LENGTH
            if self.discipline.together:
                sequences[index].finish_reason = reason
                batch.done[rows[index]] = True
            else:
                self._end(sequences[index], reason)
                finished.append(sequences[index])
        return self._end_batch() if self.discipline.together else finished

    def _end_batch(self) -> list[Sequence]:
        """Where sequences finish together: end the batch if all of it is done."""
        batch = self.batch
        if not batch.done[batch.order].all():
            return []
        ended = self.running()
        for sequence in ended:
            self._end(sequence, sequence.finish_reason or FinishReason.LENGTH)
        return ended

    def fail(self, now: float) -> None:
        """The step in flight was not executed: undo it. Its sequences wait again, in their old order."""
        plan, batch = self._plan, self.batch
        if plan is None or self.step is None:
            raise RuntimeError("fail() without a step in flight")
        self.now = now
        self._plan = None
        self._undone = set()
        self.builder.tiers.undo()
        for sequence, _ in self.step.preempted:
            if sequence.swapped:
                self.builder.keeper.drop(sequence)  # its host blocks were not written
        for row, count in zip(reversed(plan.rows.tolist()), reversed(plan.counts.tolist()), strict=True):
            sequence = batch.occupant[row]
            if sequence is not None:
                self.builder.undo(row, count + self.builder.not_copied(self.step, sequence))
                sequence.lost_tokens = int(batch.computed[row])
                self.builder.vacate(sequence)
                sequence.state = SequenceState.PREEMPTED
                sequence.account.leaves(now, self.totals.steps)
                self._undone.add(sequence.id)
                self.waiting.resume(sequence)
        if self._left_in_flight:
            self.kv.reset()  # blocks of sequences that left in between may be indexed but were never written

    # -- looking in -------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def num_running(self) -> int:
        return len(self.batch)

    @property
    def num_waiting(self) -> int:
        return len(self._sequences) - len(self.batch)

    def running(self) -> list[Sequence]:
        """In order of admission."""
        return list(self.batch.occupant[self.batch.order])

    def sequences(self, request_id: str) -> list[Sequence]:
        """The live sequences of a request."""
        return list(self._requests.get(request_id, ()))

    def length(self, sequence: Sequence) -> int:
        """Known tokens of a sequence, in whatever state."""
        return int(sequence.tokens.size if sequence.row < 0 else self.batch.length[sequence.row])

    def live(self) -> list[Sequence]:
        """All that have not ended, in the order they came."""
        return list(self._sequences.values())

    def why(self) -> dict[str, str]:
        """For every waiting sequence, why it was not started in the last step."""
        reasons = reasons_to_wait(self.waiting, self.step, self._undone, self._submitted_then)
        reasons.update(self.entrance.why())
        for leader, siblings in self._siblings.items():
            for sibling in siblings:
                if sibling.id in self._sequences:
                    reasons[sibling.id] = f"fork: {leader} computes the prompt first"
        return reasons

    def stats(self) -> SchedulerStats:
        return look(self)

    def check(self) -> None:
        """Prove the accounting of blocks and rows. AssertionError says what differs."""
        prove(self)
