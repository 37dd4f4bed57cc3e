"""The scheduler: a deterministic state machine over waiting and running sequences.

The same class drives the engine, `replay` and simulations. It reads no clock and draws no random number; what
differs between disciplines is in the objects of a `Discipline`, which call back into `run` and `admit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from paceline.core.batch import Batch
from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import Discipline
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.orders import ORDERS, Order
from paceline.core.plan import Entered, StepPlan, StepResult
from paceline.core.request import (
    FinishReason,
    IntArray,
    Request,
    Sequence,
    SequenceState,
    StepEvents,
)
from paceline.core.stats import Counters, SchedulerStats
from paceline.core.step import Step
from paceline.errors import RequestError
from paceline.kv.chain import ChainCache
from paceline.kv.interface import KVCache, Match
from paceline.kv.radix import RadixCache

CACHES: dict[str, Callable[..., KVCache]] = {"radix": RadixCache, "chain": ChainCache}
NO_MATCH = Match(length=0, blocks=[], idle=0, tail_block=-1, node=None)


class Scheduler:
    """plan = schedule(now); result = executor.execute(plan); events = complete(result, now).

    `add`, `abort` and `finish` may be called at any time between these. Times are seconds on the caller's clock.
    """

    def __init__(self, config: SchedulerConfig, discipline: Discipline | str = "paceline") -> None:
        self.config = config
        self.discipline = discipline_named(discipline) if isinstance(discipline, str) else discipline
        self.kv: KVCache = CACHES[self.discipline.cache](
            config.num_blocks, config.block_size, enable=config.enable_prefix_caching
        )
        self.batch = Batch(config.max_num_seqs, config.max_model_len, config.block_size)
        self.waiting: Order = ORDERS[self.discipline.order]()
        self.watermark_blocks = int(config.watermark * config.num_blocks)
        self.totals = Counters()
        self.step: Step | None = None  # the last one scheduled; its plan is in flight until complete() or fail()
        self._plan: StepPlan | None = None
        self._left_in_flight = False  # a row of the plan in flight was emptied since
        self._sequences: dict[str, Sequence] = {}  # every live sequence by id
        self._requests: dict[str, list[Sequence]] = {}  # live sequences of every request, by request id
        self._siblings: dict[str, list[Sequence]] = {}  # BLOCKED ones by the id of the sequence they wait for
        self._submitted = 0
        self._eos = np.array(config.eos_token_ids, np.int32)

    # -- the door ---------------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> list[Sequence]:
        """Take a request in. Returns its sequences.

        RequestError, with the numbers, for one that can never run or whose id is already here.
        """
        self._check_fits(request)
        if (reason := self.discipline.overload.refuse(self, request, now)) is not None:
            self.totals.refused += 1
            raise RequestError(reason, code="overloaded", status=429)
        indexes = range(request.params.n) if request.resumed is None else sorted(request.resumed)
        sequences = []
        for index in indexes:
            sequence = Sequence(request, index, self._submitted)
            self._submitted += 1
            sequence.max_length = self._max_length(request)
            self._sequences[sequence.id] = sequence
            sequences.append(sequence)
        if not sequences:
            return []
        self._requests[request.id] = list(sequences)
        if self.discipline.forks and request.resumed is None and len(sequences) > 1:
            self._siblings[sequences[0].id] = sequences[1:]
            for sibling in sequences[1:]:
                sibling.state = SequenceState.BLOCKED
            self.waiting.add(sequences[0])
        else:
            for sequence in sequences:
                self.waiting.add(sequence)
        return sequences

    def abort(self, request_id: str, now: float) -> list[Sequence]:
        """End all live sequences of a request, in whatever state. Unknown or ended requests: nothing happens."""
        sequences = list(self._requests.get(request_id, ()))
        for sequence in sequences:
            self._end(sequence, FinishReason.ABORT)
        return sequences

    def finish(self, sequence_id: str, reason: FinishReason, now: float) -> bool:
        """End one sequence from outside (a stop string was found). False when it had ended already."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return False
        self._end(sequence, reason)
        return True

    def _max_length(self, request: Request) -> int:
        """Most tokens a sequence of the request may have: its own limit, the context, and what the KV can hold.

        The last token needs no K/V.
        """
        limit = self.config.max_model_len
        if request.params.max_tokens is not None:
            return min(limit, int(request.prompt.size) + request.params.max_tokens)
        return min(limit, self.config.num_blocks * self.config.block_size + 1)

    def _check_fits(self, request: Request) -> None:
        config, prompt = self.config, int(request.prompt.size)
        if request.id in self._requests:
            raise RequestError(f"request id {request.id!r} is already in use", param="request_id")
        if prompt == 0:
            raise RequestError("the prompt is empty; it must have at least one token", param="prompt")
        if prompt >= config.max_model_len:
            raise RequestError(
                f"the prompt has {prompt} tokens, but the context holds {config.max_model_len}, one of them generated",
                param="prompt",
                code="context_length_exceeded",
            )
        most = self._max_length(request)
        needs = -(-max(most - 1, prompt) // config.block_size)
        if needs > config.num_blocks:
            raise RequestError(
                f"{prompt} prompt tokens and {most - prompt} to generate need {needs} KV blocks of "
                f"{config.block_size} tokens, but there are {config.num_blocks} in all; shorten the prompt, lower "
                "max_tokens, or serve with a larger KV cache",
                param="max_tokens",
                code="kv_capacity_exceeded",
            )

    # -- a step -----------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step. None when there is nothing that can run."""
        if self._plan is not None:
            raise RuntimeError("schedule() before complete() or fail() of the step in flight")
        self.kv.begin_step()
        step = Step(self.totals.steps, self.config.max_num_batched_tokens, self._chunk_limit())
        self.discipline.composition.compose(self, step)
        for sequence in (*step.new, *step.resumed):
            if sequence.first_scheduled is None:
                sequence.first_scheduled = now
        self.step = step
        self._plan = step.plan(self.batch)
        self._left_in_flight = False
        if self._plan is not None:
            self.totals.steps += 1
            self.totals.scheduled_tokens += self.config.max_num_batched_tokens - step.budget
        return self._plan

    def _chunk_limit(self) -> int:
        """Most tokens of one prompt in a step; off when there is nobody to share the step with (after vLLM)."""
        config, everyone = self.config, len(self.batch) + len(self.waiting)
        limit = config.long_prefill_token_threshold
        if limit == 0 or everyone <= 1:
            return 0
        if config.long_prefill_token_threshold_adaptive:
            limit = max(limit, config.max_num_batched_tokens // everyone)
        return limit

    def run(self, step: Step, rows: IntArray) -> None:
        """Give running rows, in the order given, the tokens they want while the budget lasts; evict to make room."""
        if not rows.size:
            return
        batch = self.batch
        counts = batch.length[rows] - batch.computed[rows]
        if step.chunk_limit:
            counts = np.minimum(counts, step.chunk_limit)
        total = int(counts.sum())
        if total > step.budget:
            counts = np.clip(step.budget - (np.cumsum(counts) - counts), 0, counts)
            rows, counts = rows[counts > 0], counts[counts > 0]
            total = int(counts.sum())
        ends = batch.computed[rows] + counts
        needs = -(-ends // batch.block_size) - batch.held[rows]
        if int(needs.sum()) > self.kv.available:
            self._run_one_by_one(step, rows)
            return
        self._give_blocks(rows, needs)
        step.put_bulk(rows, counts, total)
        whole = ends // batch.block_size
        for index in np.flatnonzero(whole > batch.computed[rows] // batch.block_size).tolist():
            self._register(int(rows[index]), int(whole[index]))
        batch.computed[rows] = ends

    def _give_blocks(self, rows: IntArray, needs: IntArray) -> None:
        """Allocate for many rows at once, in their order."""
        batch = self.batch
        index = np.flatnonzero(needs > 0)
        if not index.size:
            return
        rows, needs = rows[index], needs[index]
        blocks = self.kv.allocate(int(needs.sum()))
        if len(blocks) == rows.size:
            batch.block_table[rows, batch.held[rows]] = blocks
        else:
            column = np.arange(len(blocks)) - np.repeat(np.cumsum(needs) - needs, needs)
            batch.block_table[np.repeat(rows, needs), np.repeat(batch.held[rows], needs) + column] = blocks
        batch.held[rows] += needs

    def _run_one_by_one(self, step: Step, rows: IntArray) -> None:
        """As `run`, when blocks are short: each row in turn, preempting whom the discipline names."""
        batch, eviction = self.batch, self.discipline.eviction
        for row in rows.tolist():
            if step.budget <= 0:
                break
            if batch.occupant[row] is None:  # preempted for a row before it
                continue
            count = min(int(batch.length[row] - batch.computed[row]), step.chunk_limit or step.budget, step.budget)
            if self._make_room(step, row, count):
                self._extend(step, row, count)
            elif not eviction.yields_turn:
                break

    def _make_room(self, step: Step, row: int, count: int) -> bool:
        """Preempt until the blocks for `count` more tokens are there. False when the row itself had to go."""
        batch = self.batch
        end = int(batch.computed[row]) + count
        while -(-end // batch.block_size) - int(batch.held[row]) > self.kv.available:
            victim = self.discipline.eviction.victim(self, row)
            if victim is None:
                return False
            self.preempt(step, batch.occupant[victim])
            if victim == row:
                return False
        return True

    def _extend(self, step: Step, row: int, count: int) -> None:
        """Schedule `count` tokens of a row, whose blocks are available."""
        batch = self.batch
        end = int(batch.computed[row]) + count
        short = -(-end // batch.block_size) - int(batch.held[row])
        if short > 0:
            batch.give_blocks(row, self.kv.allocate(short))
        self._register(row, end // batch.block_size)
        batch.computed[row] = end
        step.put(row, count)

    def _register(self, row: int, whole: int) -> None:
        batch = self.batch
        lease = batch.leases[row]
        if whole > lease.registered:
            self.kv.register(lease, batch.tokens[row], batch.block_table[row], whole)

    # -- admission --------------------------------------------------------------------------------------------------

    def admit(self, step: Step) -> None:
        """Start waiting sequences, in order, while budget, rows and blocks last."""
        line = self.discipline.head_of_line
        passed: list[Sequence] = []
        for sequence in self._candidates(step):
            reason = self._try_admit(step, sequence)
            if reason is None:
                for blocked in passed:
                    line.passed(blocked)
                continue
            if step.blocked[0] is None:
                step.blocked = (sequence, reason)
            if step.budget <= 0 or self.batch.full or not line.may_pass(sequence):
                return
            passed.append(sequence)
            if len(passed) >= line.window:
                return

    def _candidates(self, step: Step) -> Iterable[Sequence]:
        """Waiting sequences in order, each once, while those admitted leave the queue."""
        if self.discipline.head_of_line.window > 1:
            yield from list(self.waiting)[: self.discipline.head_of_line.window + self.config.max_num_seqs]
            return
        while (sequence := self.waiting.first()) is not None:
            yield sequence

    def _try_admit(self, step: Step, sequence: Sequence) -> str | None:
        """Start the sequence in this step. A reason when it cannot."""
        if step.budget <= 0:
            return f"budget: all {self.config.max_num_batched_tokens} tokens of the step are given"
        if self.batch.full:
            return f"slots: all {self.config.max_num_seqs} are taken"
        match = self._match(sequence)
        count = int(sequence.tokens.size) - match.length
        if step.chunk_limit:
            count = min(count, step.chunk_limit)
        if count > step.budget and not self.config.enable_chunked_prefill:
            return f"budget: needs {count} tokens at once and {step.budget} are left"
        count = min(count, step.budget)
        if (reason := self.discipline.admission.refuse(self, sequence, match, count)) is not None:
            return reason
        self._start(step, sequence, match, count)
        return None

    def _match(self, sequence: Sequence) -> Match:
        """What the cache has of the sequence; one token at least is always left to compute."""
        if sequence.request.params.prompt_logprobs is not None:
            return NO_MATCH  # every prompt position has to be computed
        if sequence.key is None:
            sequence.key = sequence.tokens.tobytes()
        match = self.kv.match(sequence.key, int(sequence.tokens.size) - 1, sequence.namespace)
        return self._match_leader(sequence, match) if sequence.leader is not None else match

    def _match_leader(self, sequence: Sequence, match: Match) -> Match:
        """A fork copies the block its running leader's prompt ends in, which is not whole and so not in the cache."""
        leader, size = sequence.leader, self.config.block_size
        length = int(sequence.tokens.size) - 1
        whole = length // size
        if leader is None or leader.row < 0 or len(match.blocks) < whole or match.length >= length:
            return match
        return match._replace(length=length, tail_block=int(self.batch.block_table[leader.row, whole]))

    def _start(self, step: Step, sequence: Sequence, match: Match, count: int) -> None:
        """Move a waiting sequence into the batch with `count` tokens after those matched."""
        batch, size = self.batch, self.config.block_size
        self.waiting.remove(sequence)
        sequence.lease = self.kv.open(match, sequence.namespace)
        end = match.length + count
        fresh = self.kv.allocate(-(-end // size) - len(match.blocks))
        if match.length > len(match.blocks) * size:
            step.copies.append((match.tail_block, fresh[0]))
        row = batch.enter(sequence)
        batch.give_blocks(row, match.blocks)
        batch.give_blocks(row, fresh)
        batch.computed[row] = end
        self._register(row, end // size)
        step.put(row, count)
        step.entered.append(Entered(row, sequence.id, sequence.request.params, sequence.seed, sequence.prompt_length))
        step.cached[sequence.id] = match.length
        (step.new if sequence.state is SequenceState.WAITING else step.resumed).append(sequence)
        self._count_admission(sequence, match.length)
        sequence.state = SequenceState.RUNNING

    def _count_admission(self, sequence: Sequence, cached: int) -> None:
        if sequence.state is SequenceState.WAITING:
            sequence.cached_tokens = min(cached, sequence.prompt_length)
            self.totals.prompt_tokens += sequence.prompt_length
            self.totals.prefix_query_tokens += int(sequence.tokens.size)
            self.totals.prefix_hit_tokens += cached
        else:
            again = max(sequence.lost_tokens - cached, 0)
            sequence.recomputed_tokens += again
            self.totals.recomputed_tokens += again
            self.totals.resumed_hit_tokens += cached

    # -- leaving the batch ------------------------------------------------------------------------------------------

    def preempt(self, step: Step, sequence: Sequence) -> None:
        """Take a running sequence off the batch; its K/V stay in the cache, unlocked, until evicted."""
        row, batch = sequence.row, self.batch
        unwritten = step.take_out(row)
        sequence.lost_tokens = int(batch.computed[row]) - unwritten
        self._undo(row, unwritten)
        step.copies = [copy for copy in step.copies if copy[1] not in batch.blocks(row)]
        self._vacate(sequence)
        sequence.state = SequenceState.PREEMPTED
        sequence.preemptions += 1
        self.totals.preemptions += 1
        step.preempted.append((sequence, "recompute"))
        self.waiting.resume(sequence)

    def _undo(self, row: int, count: int) -> None:
        """The last `count` tokens scheduled for a row are not going to be computed."""
        if count:
            batch = self.batch
            batch.computed[row] -= count
            self.kv.unregister(batch.leases[row], batch.block_table[row], int(batch.computed[row]) // batch.block_size)

    def _vacate(self, sequence: Sequence) -> None:
        """Give back the row and the blocks."""
        batch, row = self.batch, sequence.row
        self.kv.release(batch.leases[row], batch.blocks(row))
        batch.leave(sequence)
        sequence.lease = None
        sequence.key = None
        self._left_in_flight = True

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.state is SequenceState.RUNNING:
            self._vacate(sequence)
        elif sequence.state is not SequenceState.BLOCKED:
            self.waiting.remove(sequence)
        for sibling in self._siblings.pop(sequence.id, ()):  # the leader ends before it computed the prompt
            if sibling.id in self._sequences:
                self._unblock(sibling)
        sequence.state = SequenceState.FINISHED
        sequence.finish_reason = reason
        del self._sequences[sequence.id]
        live = self._requests[sequence.request.id]
        live.remove(sequence)
        if not live:
            del self._requests[sequence.request.id]
        self.totals.finished += 1

    def _unblock(self, sibling: Sequence) -> None:
        if sibling.state is SequenceState.BLOCKED:
            sibling.state = SequenceState.WAITING
            self.waiting.resume(sibling)

    # -- after a step -----------------------------------------------------------------------------------------------

    def complete(self, result: StepResult, now: float) -> StepEvents:
        """Take the sampled tokens in; end what is finished. Sequences that left since `schedule` are passed over."""
        plan, batch = self._plan, self.batch
        if plan is None or self.step is None:
            raise RuntimeError("complete() without a step in flight")
        self._plan = None
        rows = plan.rows[plan.samples]
        tokens = np.asarray(result.tokens, np.int32)
        if tokens.size != rows.size:
            raise ValueError(f"the step samples {rows.size} tokens, the executor returned {tokens.size}")
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
        for index in np.flatnonzero(length == batch.prompt_length[rows] + 1).tolist():
            self._first_token(sequences[index], now)
        finished = self._finish_rows(rows, tokens, length, sequences)
        return StepEvents(sequences=sequences, tokens=tokens, sampled=sampled, finished=finished)

    def _first_token(self, sequence: Sequence, now: float) -> None:
        if sequence.first_token is None:
            sequence.first_token = now
        for sibling in reversed(self._siblings.pop(sequence.id, [])):
            if sibling.id in self._sequences:
                sibling.leader = sequence
                self._unblock(sibling)

    def _finish_rows(
        self, rows: IntArray, tokens: IntArray, length: IntArray, sequences: np.typing.NDArray[np.object_]
    ) -> list[Sequence]:
        batch = self.batch
        free_to_stop = length >= batch.min_length[rows]
        stops = np.zeros(rows.size, np.bool_)
        for eos in self._eos.tolist():
            stops |= tokens == eos
        stops &= batch.eos_counts[rows] & free_to_stop
        for index in np.flatnonzero(batch.own_stops[rows] & free_to_stop & ~stops).tolist():
            if int(tokens[index]) in sequences[index].request.params.stop_token_ids:
                stops[index] = True
                sequences[index].stop_token = int(tokens[index])
        ends = stops | (length >= batch.max_length[rows])
        finished = []
        for index in np.flatnonzero(ends).tolist():
            self._end(sequences[index], FinishReason.STOP if stops[index] else FinishReason.LENGTH)
            finished.append(sequences[index])
        return finished

    def fail(self, now: float) -> None:
        """The step in flight was not executed: undo it. Its sequences wait again, in their old order."""
        plan, batch = self._plan, self.batch
        if plan is None or self.step is None:
            raise RuntimeError("fail() without a step in flight")
        self._plan = None
        for row, count in zip(reversed(plan.rows.tolist()), reversed(plan.counts.tolist()), strict=True):
            sequence = batch.occupant[row]
            if sequence is not None:
                sequence.lost_tokens = int(batch.computed[row]) - count
                self._undo(row, count)
                self._vacate(sequence)
                sequence.state = SequenceState.PREEMPTED
                self.waiting.resume(sequence)
        if self._left_in_flight:
            self.kv.reset()  # blocks of sequences that left in between may be indexed but were never written

    # -- looking in -------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._sequences)

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

    def why(self) -> dict[str, str]:
        """For every waiting sequence, why it was not started in the last step."""
        blocked, reason = self.step.blocked if self.step is not None else (None, "")
        preempted = {sequence.id for sequence, _ in self.step.preempted} if self.step is not None else set()
        reasons: dict[str, str] = {}
        for sequence in self.waiting:
            if sequence is blocked:
                reasons[sequence.id] = reason
            elif sequence.id in preempted:
                reasons[sequence.id] = "preempted: its KV blocks were needed by others"
            elif preempted:
                reasons[sequence.id] = "KV: a running sequence had to be preempted in this step, so nobody starts"
            elif blocked is not None:
                reasons[sequence.id] = f"behind {blocked.id} ({reason})"
            else:
                reasons[sequence.id] = "new: arrived after the last step was scheduled"
        for leader, siblings in self._siblings.items():
            for sibling in siblings:
                if sibling.id in self._sequences:
                    reasons[sibling.id] = f"fork: {leader} computes the prompt first"
        return reasons

    def stats(self) -> SchedulerStats:
        kv, config = self.kv, self.config
        return SchedulerStats(
            running=self.num_running,
            waiting=self.num_waiting,
            blocks_total=config.num_blocks,
            blocks_held=config.num_blocks - kv.available,
            blocks_cached=kv.available - kv.free,
            blocks_free=kv.free,
            totals=replace(self.totals),
        )

    def check(self) -> None:
        """Prove the accounting of blocks and rows. AssertionError says what differs."""
        batch = self.batch
        rows = batch.order.tolist()
        self.kv.check([(batch.leases[row], batch.blocks(row).tolist()) for row in rows])
        for row in rows:
            sequence = batch.occupant[row]
            assert sequence.row == row and sequence.state is SequenceState.RUNNING, f"row {row} and {sequence} differ"
            assert batch.held[row] == -(-batch.computed[row] // batch.block_size), f"row {row} holds wrong blocks"
        running = sum(sequence.state is SequenceState.RUNNING for sequence in self._sequences.values())
        assert running == len(rows), f"{running} sequences say they run, {len(rows)} rows are occupied"
