"""Plays schedules against a `Scheduler` with a fake model and simulated K/V, and judges every step.

`World` stands where an executor stands and knows what one knows: the plans. It keeps, for every place of every block, a
mark of the exact prefix (namespace included) whose K/V would lie there, and executes a step in the order an executor
does: copies, then all writes, then all reads. So a wrong hit, a hit on a block nobody wrote, a copy of the wrong block
or a shared block written twice shows up as a wrong mark under a token that attends to it. The fake model's next token
is a function of those marks, so a sequence's text is known before it runs, and is the same however it was scheduled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.core.compositions import Reselect
from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.plan import StepPlan, StepResult
from paceline.core.request import FinishReason, Request, SequenceState, StepEvents
from paceline.core.scheduler import Scheduler
from paceline.errors import RequestError
from tests.core.asks import Ask, Reference
from tests.core.device import Device


class World:
    """A scheduler, its executor without a model, and the judge of both: AssertionError on anything not right."""

    def __init__(
        self,
        config: SchedulerConfig,
        discipline: str = "paceline",
        order: str | None = None,
        knobs: Mapping[str, Any] | None = None,
        victim: str | None = None,
        block_seconds: float = 0.0,
        damaged: int = 0,
    ) -> None:
        """`block_seconds`: what moving a block between tiers takes; `damaged`: of so many blocks on disk one is."""
        self.config = config
        row = discipline_named(discipline, order).with_eviction(victim).with_knobs(knobs or {})
        self.scheduler = Scheduler(config, row)
        self.device = Device(config, block_seconds, damaged)
        self.references: dict[str, Reference] = {}
        self.live: dict[str, Any] = {}  # sequence id -> Sequence
        self.ended: dict[str, Any] = {}
        self.rows: dict[int, str] = {}  # as an executor knows them: from `plan.entered`
        self.computed: dict[str, int] = {}  # tokens with K/V of the sequences in rows
        self.chunks: dict[str, list[tuple[int, int]]] = {}  # (start, count) since a sequence last took its row
        self.log: list[str] = []  # every decision, as JSON
        self.trace: list[tuple[Any, ...]] = []  # every call and its arguments
        self.steps = 0
        self.now = 0.0

    # -- what clients do ----------------------------------------------------------------------------------------------

    def request(self, ask: Ask) -> Request:
        resumed = None
        if ask.resumed is not None:
            size = len(ask.prompt)
            resumed = {
                index: np.array(Reference(ask, index, self.config).tokens[size : size + count], np.int32)
                for index, count in ask.resumed
            }
        return Request(
            id=ask.id,
            prompt=np.array(ask.prompt, np.int32),
            params=ask.params,
            arrival=ask.arrival,
            priority=ask.priority,
            tenant=ask.salt or "default",
            output_hint=ask.max_tokens,
            cache_salt=ask.salt,
            seed=ask.seed or 0,
            resumed=resumed,
        )

    def impossible(self, ask: Ask) -> bool:
        """Can it never run?"""
        config, size = self.config, len(ask.prompt)
        if size == 0 or size >= config.max_model_len or ask.id in {live.request.id for live in self.live.values()}:
            return True
        total = min(config.max_model_len, size + (ask.max_tokens or 0))  # of which the last needs no K/V
        if ask.max_tokens is None:
            total = min(config.max_model_len, config.num_blocks * config.block_size + 1)
        if any(size + min(count, max(total - size, 0)) >= total for _, count in ask.resumed or ()):
            return True
        return self.scheduler.discipline.admission.most_blocks(config, size, total) > config.num_blocks

    def add(self, ask: Ask) -> bool:
        """Add the request. False when it was refused, which must be exactly when it can never run."""
        request = self.request(ask)
        self.trace.append(("add", request, self.now))
        try:
            sequences = self.scheduler.add(request, self.now)
        except RequestError as error:
            assert self.impossible(ask), f"refused although it could run: {ask}: {error}"
            self.log.append(json.dumps({"refused": ask.id, "reason": str(error)}))
            return False
        assert not self.impossible(ask), f"taken although it can never run: {ask}"
        assert [sequence.id for sequence in sequences] == ask.sequence_ids()
        for sequence in sequences:
            self.references[sequence.id] = Reference(ask, sequence.index, self.config)
            self.live[sequence.id] = sequence
        return True

    def abort(self, request_id: str) -> None:
        self.trace.append(("abort", request_id, self.now))
        expected = {key for key, sequence in self.live.items() if sequence.request.id == request_id}
        sequences = self.scheduler.abort(request_id, self.now)
        assert {sequence.id for sequence in sequences} == expected
        for sequence in sequences:
            self._left(sequence, FinishReason.ABORT)

    def finish(self, sequence_id: str) -> None:
        self.trace.append(("finish", sequence_id, self.now))
        ended = self.scheduler.finish(sequence_id, FinishReason.STOP, self.now)
        assert ended == (sequence_id in self.live)
        if ended:
            self._left(self.live[sequence_id], FinishReason.STOP)

    def reset(self) -> None:
        """Drop the prefix cache, whoever runs."""
        self.trace.append(("reset", self.now))
        self.scheduler.kv.reset()

    def act(self, actions: Iterable[tuple[str, Any]]) -> None:
        for name, argument in actions:
            if name == "reset":
                self.reset()
            else:
                getattr(self, name)(argument)
            self.scheduler.check()

    def _left(self, sequence: Any, reason: FinishReason) -> None:
        """It ended from outside: what it said so far is the beginning of what it says alone."""
        assert sequence.state is SequenceState.FINISHED and sequence.finish_reason is reason
        reference = self.references[sequence.id].tokens
        assert sequence.tokens.tolist() == reference[: sequence.tokens.size], f"{sequence.id} said something else"
        del self.live[sequence.id]
        self.ended[sequence.id] = sequence

    # -- a step -------------------------------------------------------------------------------------------------------

    def step(self, mid: Sequence[tuple[str, Any]] = (), fail: bool = False, seconds: float = 1.0) -> StepPlan | None:
        """Schedule, judge, execute, complete. `mid` happens between; `fail`: the executor did not execute."""
        scheduler = self.scheduler
        self.trace.append(("schedule", self.now))
        plan = scheduler.schedule(self.now)
        scheduler.check()
        for sequence in scheduler.take_ended():
            self._judge_ended(sequence)
        self.forget_rows_of_ended()
        self._judge_decision(plan)
        self.now += seconds
        if plan is None:
            self.act(mid)
            return None
        self.steps += 1
        # The plan's matrices are the scheduler's; an executor is busy with them while requests come and go.
        self.device.failed = self.device.failed or fail
        result = None if fail else self._execute(plan)
        self.act(mid)
        if result is None:
            self.trace.append(("fail", self.now))
            scheduler.fail(self.now)
            for row in plan.rows.tolist():
                self.computed.pop(self.rows.pop(row), None)
        else:
            self.trace.append(("complete", result, self.now))
            self._judge_events(plan, scheduler.complete(result, self.now))
        scheduler.check()
        return plan

    def _judge_decision(self, plan: StepPlan | None) -> None:
        scheduler, config = self.scheduler, self.config
        decided = scheduler.step
        assert decided is not None
        why = scheduler.why()
        waiting = {key for key, sequence in self.live.items() if sequence.state is not SequenceState.RUNNING}
        assert set(why) == waiting, f"why() names {set(why)}, waiting are {waiting}"
        assert all(reason for reason in why.values()), why
        preempted = [sequence.id for sequence, _ in decided.preempted]
        assert len(set(preempted)) == len(preempted)
        for name in preempted:
            assert self.live[name].state is SequenceState.PREEMPTED
            row = next(row for row, owner in self.rows.items() if owner == name)
            del self.rows[row], self.computed[name]
        if plan is None:
            self._judge_empty(preempted)
            self.log.append(json.dumps({"empty": True, "preempted": preempted, "why": why}))
            return
        assert plan.rows.size == plan.counts.size == plan.starts.size == plan.samples.size
        assert plan.rows.size or plan.swap_out.size or plan.to_disk or plan.from_disk
        assert (plan.counts > 0).all() and int(plan.counts.sum()) <= config.max_num_batched_tokens
        assert len(set(plan.rows.tolist())) == plan.rows.size, "a row is scheduled twice"
        assert len(scheduler.batch) <= config.max_num_seqs
        for moves in (plan.swap_out, plan.swap_in):
            assert len(set(moves[:, 1].tolist())) == len(moves), "two blocks are swapped into one"
        into = [*plan.swap_out[:, 1].tolist(), *(block for _, block in plan.from_disk)]
        assert len(set(into)) == len(into), "two blocks are moved into one on the host"
        assert not {*into} & {*plan.swap_in[:, 0].tolist()}, "a host block is read that this step writes"
        if plan.copies.size:
            assert len(set(plan.copies[:, 1].tolist())) == len(plan.copies), "two copies into one block"
        fresh = {entered.row for entered in plan.entered}
        for entered in plan.entered:
            name = entered.sequence_id
            assert name in self.live and name not in self.computed and entered.row not in self.rows, name
            assert entered.prompt_length == len(self.references[name].ask.prompt)
            self.rows[entered.row] = name
            self.computed[name] = decided.cached[name]
            self.chunks[name] = []
            if name in decided.kept:
                continue
            if self.references[name].ask.prompt_logprobs is not None:
                assert decided.cached[name] == 0, "a prompt whose logprobs are asked for must be computed"
            if not config.enable_prefix_caching and self.live[name].index == 0:
                assert decided.cached[name] == 0
        assert set(self.rows.values()) == {sequence.id for sequence in scheduler.running()}
        lengths = []
        for row, start, count, samples in zip(
            plan.rows.tolist(), plan.starts.tolist(), plan.counts.tolist(), plan.samples.tolist(), strict=True
        ):
            name = self.rows[row]
            assert start == self.computed[name], f"{name}: chunk from {start}, but {self.computed[name]} are computed"
            self.computed[name] = start + count
            self.chunks[name].append((start, count))
            length = int(scheduler.batch.length[row])
            assert start + count <= length and samples == (start + count == length), name
            if not config.enable_chunked_prefill and row in fresh and not config.long_prefill_token_threshold:
                assert samples, f"{name}: a prompt was cut although chunked prefill is off"
            lengths.append(
                [name, start, count, plan.block_table[row, : -(-(start + count) // config.block_size)].tolist()]
            )
        self.log.append(
            json.dumps(
                {
                    "scheduled": lengths,
                    "copies": plan.copies.tolist(),
                    "swap_out": plan.swap_out.tolist(),
                    "swap_in": plan.swap_in.tolist(),
                    "disk": [len(plan.to_disk), len(plan.from_disk), len(plan.drop_disk)],
                    "entered": [entered[:2] for entered in plan.entered],
                    "cached": decided.cached,
                    "preempted": preempted,
                    "waiting": [sequence.id for sequence in scheduler.waiting],
                    "running": [sequence.id for sequence in scheduler.running()],
                    "why": why,
                    "free": [scheduler.kv.available, scheduler.kv.free],
                }
            )
        )

    def _judge_empty(self, preempted: list[str]) -> None:
        """An empty step with somebody waiting: nobody could have started."""
        scheduler, config = self.scheduler, self.config
        if preempted or scheduler.discipline.empty_steps:
            return
        assert len(scheduler.batch) == 0 or scheduler.waiting, "sequences run, nobody waits, and the step is empty"
        for sequence in scheduler.waiting:
            if len(scheduler.batch) >= config.max_num_seqs:
                continue
            match = scheduler.builder.match(sequence)
            count = min(int(sequence.tokens.size) - match.length, config.max_num_batched_tokens)
            reason = scheduler.discipline.admission.refuse(scheduler.builder, sequence, match, count)
            assert reason is not None, f"the step is empty although {sequence.id} could start"

    def _execute(self, plan: StepPlan) -> StepResult:
        decided = self.scheduler.step
        assert decided is not None
        return self.device.execute(plan, decided, {row: self.references[name] for row, name in self.rows.items()})

    def _judge_events(self, plan: StepPlan, events: StepEvents) -> None:
        sampled = [self.rows[row] for row in plan.rows[plan.samples].tolist()]
        expected = [name for name in sampled if name in self.live]
        assert [sequence.id for sequence in events.sequences] == expected
        assert [sampled[index] for index in events.sampled.tolist()] == expected
        finished = {sequence.id for sequence in events.finished}
        for sequence in events.finished:
            self._judge_ended(sequence)
        for row, name in list(self.rows.items()):
            if name not in self.live:
                del self.rows[row], self.computed[name]
        for name in expected:
            assert name in finished or self.live[name].state is SequenceState.RUNNING

    def _judge_ended(self, sequence: Any) -> None:
        """The scheduler ended it: it said all it says alone, or as far as it came before its time was up."""
        name = sequence.id
        if sequence.finish_reason is FinishReason.EXPIRED:
            assert sequence.finish_detail
            self._left(sequence, FinishReason.EXPIRED)
            return
        reference = self.references[name]
        assert self.live.pop(name) is sequence and sequence.state is SequenceState.FINISHED
        assert sequence.tokens.tolist() == reference.tokens, f"{name} said something else than alone"
        assert sequence.finish_reason is reference.reason, name
        assert self.chunks[name][0][0] + sum(count for _, count in self.chunks[name]) == len(reference.tokens) - 1
        self.ended[name] = sequence

    def forget_rows_of_ended(self) -> None:
        """An abort between steps takes its rows with it."""
        for row, name in list(self.rows.items()):
            if name not in self.live:
                del self.rows[row]
                self.computed.pop(name, None)

    # -- whole runs ---------------------------------------------------------------------------------------------------

    def turn(
        self,
        before: Sequence[tuple[str, Any]] = (),
        mid: Sequence[tuple[str, Any]] = (),
        fail: bool = False,
        seconds: float = 1.0,
    ) -> StepPlan | None:
        self.act(before)
        self.forget_rows_of_ended()
        plan = self.step(mid, fail, seconds)
        self.forget_rows_of_ended()
        return plan

    def bound(self) -> int:
        """Steps within which what is live must end."""
        work = sum(len(self.references[name].tokens) for name in self.live)
        bound = 16 + 4 * work + 2 * work // max(1, self.config.max_num_batched_tokens)
        # Who runs is chosen anew every step: all that was computed may be lost for every new token.
        return 2 * bound if isinstance(self.scheduler.discipline.composition, Reselect) else bound

    def drain(self) -> int:
        """Run until everything ended, within the bound; then nothing may be left anywhere. Returns the steps taken."""
        steps = self.drain_keeping_cache()
        self.empty()
        return steps

    def drain_keeping_cache(self) -> int:
        bound = self.bound()
        steps = 0
        while self.live:
            assert steps < bound, f"{sorted(self.live)} still live after {steps} steps; {self.scheduler.why()}"
            self.turn()
            steps += 1
        return steps

    def empty(self) -> None:
        scheduler, kv = self.scheduler, self.scheduler.kv
        assert not scheduler.has_work() and not len(scheduler.waiting) and not len(scheduler.batch)
        assert not scheduler._siblings and not scheduler._requests and not scheduler._sequences
        assert scheduler.schedule(self.now) is None
        scheduler.check()
        assert kv.available == self.config.num_blocks
        assert scheduler.builder.keeper.host.available == self.config.num_host_blocks
        stats = scheduler.stats()
        assert stats.running == stats.waiting == stats.blocks_held == 0
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
        assert kv.reset() is True
        scheduler.check()
        assert kv.free == self.config.num_blocks
