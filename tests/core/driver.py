"""Plays schedules against a `Scheduler` with a fake model and simulated K/V, and judges every step.

`World` stands where an executor stands and knows what one knows: the plans. It keeps, for every place of every block, a
mark of the exact prefix (namespace included) whose K/V would lie there, and executes a step in the order an executor
does: copies, then all writes, then all reads. So a wrong hit, a hit on a block nobody wrote, a copy of the wrong block
or a shared block written twice shows up as a wrong mark under a token that attends to it. The fake model's next token
is a function of those marks, so a sequence's text is known before it runs, and is the same however it was scheduled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from paceline.core.compositions import Reselect
from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.evictions import VICTIMS
from paceline.core.params import SamplingParams
from paceline.core.plan import Moved, StepPlan, StepResult
from paceline.core.request import FinishReason, Request, SequenceState, StepEvents
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError, RequestError

MASK = (1 << 64) - 1
POISON = np.uint64(0)
EOS = 1
VOCABULARY = 5


def mix(mark: int, value: int) -> int:
    mark = ((mark ^ (value + 0x9E3779B9)) * 0xD6E8FEB86659FD93) & MASK
    return mark ^ (mark >> 32)


@dataclass(frozen=True)
class Ask:
    """A request of a script."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int | None = 4
    n: int = 1
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = True
    priority: int = 0
    arrival: float = 0.0
    salt: str | None = None
    seed: int | None = None  # None: greedy, so equal prompts continue equally
    prompt_logprobs: int | None = None
    resumed: tuple[tuple[int, int], ...] | None = None  # (sequence index, tokens generated before)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            n=self.n,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            temperature=0.0 if self.seed is None else 1.0,
            prompt_logprobs=self.prompt_logprobs,
        )

    def sequence_ids(self) -> list[str]:
        indexes = range(self.n) if self.resumed is None else [index for index, _ in self.resumed]
        return [self.id if index == 0 else f"{self.id}#{index}" for index in indexes]


class Reference:
    """What one sequence says when it runs alone, and the marks its K/V must carry."""

    def __init__(self, ask: Ask, index: int, config: SchedulerConfig) -> None:
        self.ask = ask
        self.tokens = list(ask.prompt)
        self.reason = FinishReason.LENGTH
        limit = config.max_model_len
        if ask.max_tokens is None:
            limit = min(limit, config.num_blocks * config.block_size + 1)
        else:
            limit = min(limit, len(ask.prompt) + ask.max_tokens)
        self.limit = limit
        mark = mix(7, sum((byte + 1) << (8 * at) for at, byte in enumerate((ask.salt or "").encode())))
        marks = []
        for token in ask.prompt:
            mark = mix(mark, token)
            marks.append(mark)
        self.chooser = 0 if ask.seed is None else mix(ask.seed, index) | 1
        while len(self.tokens) < limit:
            token = self.choose(mark)
            self.tokens.append(token)
            mark = mix(mark, token)
            marks.append(mark)
            ends = (token in config.eos_token_ids and not ask.ignore_eos) or token in ask.stop_token_ids
            if ends and len(self.tokens) - len(ask.prompt) >= ask.min_tokens:
                self.reason = FinishReason.STOP
                break
        self.marks = np.array(marks, np.uint64)

    def choose(self, mark: int) -> int:
        return (mix(mark, self.chooser) >> 20) % VOCABULARY


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
        self.block_seconds = block_seconds
        self.damaged = damaged
        row = discipline_named(discipline, order).with_eviction(victim).with_knobs(knobs or {})
        self.scheduler = Scheduler(config, row)
        self.contents = np.full((config.num_blocks, config.block_size), POISON)
        self.host = np.full((config.num_host_blocks, config.block_size), POISON)
        self.disk: dict[bytes, Any] = {}  # content key -> marks
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
        self.failed = False  # some step was not executed

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
        self.failed = self.failed or fail
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
        """Swaps and copies, then writes, then reads; the tokens sampled follow from what was read."""
        size, contents = self.config.block_size, self.contents
        leaving = contents[plan.swap_out[:, 0]]
        sources = contents[plan.copies[:, 0]] if plan.copies.size else None
        decided = self.scheduler.step
        assert decided is not None
        # Who was held has its blocks as it left them; who comes back from the host gets all of its own.
        held = decided.kept.keys() - decided.swapped_in.keys()
        fresh = {entered.row for entered in plan.entered if entered.sequence_id not in held}
        spans = []
        for row, start, count in zip(plan.rows.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True):
            end = start + count
            table = plan.block_table[row, : -(-end // size)]
            # What a block held before it was given to this sequence is unknown, whatever it happens to be.
            contents[table[start // size if row in fresh else -(-start // size) :]] = POISON
            spans.append((self.references[self.rows[row]], row, start, end, table))
        lost = self._execute_disk(plan)
        self.host[plan.swap_out[:, 1]] = leaving
        if sources is not None:
            contents[plan.copies[:, 1]] = sources
        contents[plan.swap_in[:, 1]] = self.host[plan.swap_in[:, 0]]
        written: list[int] = []
        for reference, row, start, end, table in spans:
            assert plan.tokens[row, :end].tolist() == reference.tokens[:end], f"{self.rows[row]} has other tokens"
            places = np.arange(start, end)
            flat = table[places // size].astype(np.int64) * size + places % size
            contents.reshape(-1)[flat] = reference.marks[start:end]
            written += flat.tolist()
        assert len(set(written)) == len(written), "two rows write one place"
        tokens = []
        for (reference, row, _, end, table), samples in zip(spans, plan.samples.tolist(), strict=True):
            read = contents[table].reshape(-1)[:end]
            wrong = np.flatnonzero(read != reference.marks[:end])
            assert not wrong.size, f"{self.rows[row]} reads foreign K/V at {wrong.tolist()}, blocks {table.tolist()}"
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


@dataclass(frozen=True)
class Script:
    """A whole run as data: prints well, and plays again from its own repr."""

    config: SchedulerConfig
    discipline: str
    order: str
    before: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)  # turn -> actions before schedule()
    mid: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)  # turn -> between schedule() and complete()
    fails: frozenset[int] = frozenset()
    seconds: float = 1.0
    knobs: Mapping[str, Any] = field(default_factory=dict)
    victim: str | None = None
    block_seconds: float = 0.0
    damaged: int = 0

    @property
    def turns(self) -> int:
        return max([0, *(turn + 1 for turn in (*self.before, *self.mid, *self.fails))])

    def play(self) -> World:
        world = World(
            self.config, self.discipline, self.order, self.knobs, self.victim, self.block_seconds, self.damaged
        )
        for turn in range(self.turns):
            world.turn(self.before.get(turn, ()), self.mid.get(turn, ()), turn in self.fails, self.seconds)
        world.drain()
        return world


def sensible(config: SchedulerConfig, discipline: str) -> SchedulerConfig:
    """The settings with those changed that the discipline insists on."""
    pinned = {name: value for name, (value, _) in discipline_named(discipline).fixed.items()}
    if pinned.get("enable_chunked_prefill") is False:
        pinned["max_num_batched_tokens"] = max(config.max_num_batched_tokens, config.max_model_len)
    return replace(config, **pinned)


def makes_sense(discipline: str, order: str) -> bool:
    """May the row go with the order?"""
    row = discipline_named(discipline, order)
    try:
        row.check(row.configure(num_blocks=1))
    except ConfigError:
        return False
    return True


def crowded_config(random: Random) -> SchedulerConfig:
    """Little room for many that grow: preemptions of those already scheduled, and comings back."""
    block_size = random.choice([2, 4, 8])
    max_model_len = random.choice([24, 33, 48])
    seqs = random.choice([2, 3, 4, 6])
    return SchedulerConfig(
        num_blocks=-(-max_model_len // block_size) + random.randint(0, 3),
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=random.choice([seqs, seqs + 3, 12, 48]),
        max_model_len=max_model_len,
        enable_prefix_caching=random.random() < 0.9,
        long_prefill_token_threshold=random.choice([0, 1, 3, 6]),
        scheduler_reserve_full_isl=random.random() < 0.6,
    )


def crowded_ask(random: Random, name: str, bases: list[tuple[int, ...]]) -> Ask:
    base = random.choice(bases)
    return Ask(
        id=name,
        prompt=base[: random.randint(1, min(len(base), 12))],
        max_tokens=random.randint(4, 20),
        n=random.choice([1, 1, 2, 3]),
        priority=random.choice([0, 0, 1, 3]),
        arrival=float(random.randint(0, 8)),
        seed=random.choice([None, 1, 2, 3]),
    )


def random_config(random: Random) -> SchedulerConfig:
    block_size = random.choice([1, 2, 3, 4, 4, 8])
    max_model_len = random.choice([8, 16, 33, 48])
    chunked = random.random() < 0.8
    seqs = random.choice([1, 2, 3, 4, 8])
    tokens = random.choice([1, 2, 3, 5, 8, 16, 64])
    longest = -(-max_model_len // block_size)
    return SchedulerConfig(
        num_blocks=random.choice([max(1, longest // 2), longest, longest + 1, longest + longest // 2, 3 * longest]),
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, tokens if chunked else max(tokens, max_model_len)),
        max_model_len=max_model_len,
        enable_prefix_caching=random.random() < 0.85,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=random.choice([0, 0, 0, 1, 2, 5]),
        long_prefill_token_threshold_adaptive=random.random() < 0.3,
        watermark=random.choice([0.0, 0.0, 0.1, 0.34]),
        scheduler_reserve_full_isl=random.random() < 0.7,
        eos_token_ids=random.choice([(), (EOS,)]),
    )


def random_ask(random: Random, name: str, config: SchedulerConfig, bases: list[tuple[int, ...]]) -> Ask:
    base = random.choice(bases)
    prompt = base[: random.randint(1, len(base))]
    if random.random() < 0.5:
        prompt += tuple(random.randrange(VOCABULARY) for _ in range(random.randint(1, 6)))
    if random.random() < 0.02:
        prompt = ()
    max_tokens = random.choice([1, 2, 3, 5, 8, 13, 21, None])
    n = random.choice([1, 1, 1, 1, 2, 3, 5])
    resumed = None
    if random.random() < 0.1 and prompt:
        # What a request had generated when its engine died is less than what it may generate.
        most = (
            min(max_tokens or 3, max(config.max_model_len - len(prompt), 1), config.num_blocks * config.block_size) - 1
        )
        resumed = tuple((index, random.randint(0, max(most, 0))) for index in range(n) if random.random() < 0.7)
    ends = resumed is None and random.random() < 0.5
    return Ask(
        id=name,
        prompt=prompt,
        max_tokens=max_tokens,
        n=n,
        min_tokens=random.randint(0, max_tokens or 4) if random.random() < 0.3 else 0,
        stop_token_ids=(random.randrange(VOCABULARY),) if ends and random.random() < 0.5 else (),
        ignore_eos=not (ends and random.random() < 0.5),
        priority=random.choice([0, 0, 0, 1, -1, 5]),
        arrival=float(random.randint(0, 8)),
        salt=random.choice([None, None, None, "a", "b"]),
        seed=random.choice([None, None, 1, 2]),
        prompt_logprobs=None,
        resumed=resumed,
    )


# Values that make things happen in short runs.
KNOBS = {"growth": (0, 1, 4), "most": (0, 1, 3), "window": (2, 3), "clip": (0, 2)}


def random_knobs(random: Random, discipline: str) -> dict[str, Any]:
    """Some numbers of the row changed, where they are numbers."""
    values = discipline_named(discipline).knobs()
    return {
        name: random.choice(choices)
        for name, choices in KNOBS.items()
        if type(values.get(name)) is int and values[name] > 1 and random.random() < 0.6
    } | (
        {"how": random.choice(["recompute", "swap", "swap", "hold", "auto", "threshold:6"])} if "how" in values else {}
    )


def random_script(random: Random, discipline: str, order: str, distinct: bool = False) -> Script:
    """`distinct`: no two sequences are equal in priority and arrival."""
    crowded = random.random() < 0.5
    config = sensible(crowded_config(random) if crowded else random_config(random), discipline)
    config = replace(config, num_host_blocks=random.choice([0, 3, 8, 64]))
    longest = max(config.max_model_len * 3 // 4, 2)
    bases = [
        tuple(random.randrange(VOCABULARY) for _ in range(random.randint(1, longest)))
        for _ in range(random.randint(1, 3))
    ]
    before: dict[int, list[tuple[str, Any]]] = {}
    mid: dict[int, list[tuple[str, Any]]] = {}
    spread = random.choice([1, 4, 16])
    for number in range(random.randint(1, 9)):
        name = f"r{number}"
        ask = crowded_ask(random, name, bases) if crowded else random_ask(random, name, config, bases)
        if distinct:
            ask = replace(ask, arrival=number + random.random() / 2, n=1, resumed=None)
        turn = random.randrange(spread)
        (before if random.random() < 0.8 else mid).setdefault(turn, []).append(("add", ask))
        for chance, action in ((0.15, "abort"), (0.1, "finish")):
            if random.random() < chance:
                target = ask.id
                if action == "finish" and ask.n > 1 and (index := random.randrange(ask.n)):
                    target = f"{ask.id}#{index}"
                when = turn + random.randint(0, 8)
                (before if random.random() < 0.5 else mid).setdefault(when, []).append((action, target))
    if random.random() < 0.1:
        before.setdefault(random.randrange(12), []).append(("reset", None))
    fails = (
        frozenset(random.randrange(14) for _ in range(random.randint(1, 3))) if random.random() < 0.3 else frozenset()
    )
    seconds, knobs = random.choice([0.5, 1.0]), random_knobs(random, discipline)
    config = replace(
        config,
        num_disk_blocks=random.choice([0, 0, 4, 40]) if config.num_host_blocks else 0,
        kv_load=random.choice(["auto", "auto", "always", "never"]),
        max_preemptions=random.choice([0, 1, 2, 4]),
    )
    # Where prompts start that do not fit as a whole, or come in parts, some compositions need the victims they were
    # made with: a prompt that evicts itself and starts again keeps decodes from running.
    whole = config.scheduler_reserve_full_isl and not config.long_prefill_token_threshold
    victim = random.choice([None, None, *VICTIMS]) if whole else None
    try:
        discipline_named(discipline, order).with_eviction(victim)
    except ConfigError:
        victim = None  # nobody yields, or it is not the row's to choose
    if order == "priority":
        knobs |= {"displace": random.random() < 0.7, "hysteresis": random.choice([0, 0, 1])}
    return Script(
        config,
        discipline,
        order,
        before,
        mid,
        fails,
        seconds,
        knobs,
        victim,
        random.choice([0.0, 0.05, 1.0]),
        random.choice([0, 2, 5]),
    )


def equals_livelock(discipline: str, order: str) -> bool:
    """Under vLLM's priority rule, sequences equal in priority and arrival can evict each other for ever.

    The victim among equals is the one admitted first, so whoever returned last lives at the expense of the others.
    """
    return (discipline, order) == ("vllm", "priority")


def log_of(seeds: Iterable[int], discipline: str, order: str) -> list[str]:
    """Every decision of the scripts of these seeds."""
    distinct = equals_livelock(discipline, order)
    return [line for seed in seeds for line in random_script(Random(seed), discipline, order, distinct).play().log]


if __name__ == "__main__":  # lines "DISCIPLINE ORDER SEED" on standard input: the decisions, to compare processes by
    played = (line.split() for line in sys.stdin)
    sys.stdout.write("\n".join(line for *pair, seed in played for line in log_of([int(seed)], *pair)))
