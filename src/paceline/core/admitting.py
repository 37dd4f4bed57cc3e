"""Starting waiting sequences in a step: who is tried, and what it takes to move one into the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from paceline.core.first_chunk import FirstChunk
from paceline.core.plan import Entered
from paceline.core.request import Sequence, SequenceState
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder

# Reasons to start somebody else first that are nobody's loss: who has them is next in a later step.
DEFERRED = ("prefix", "bucket")
MOST_DEFERRED = 64  # waiting sequences looked at in a step beyond those

LOOK = 8  # waiting sequences taken from the queue at a time, behind one that stays


class Admitting:
    """One per step builder. What an order has beyond the least (`orders.interface`) is asked for once."""

    def __init__(self, builder: StepBuilder) -> None:
        self.builder = builder
        waiting = builder.waiting
        self._started: Callable[[Sequence, int], None] | None = getattr(waiting, "started", None)
        self._walk: Callable[[], Iterable[Sequence]] | None = getattr(waiting, "walk", None)
        self._hold: Callable[[Sequence, Match], str | None] | None = getattr(waiting, "hold", None)

    # -- who is tried -----------------------------------------------------------------------------------------------

    def admit(self, step: Step, among: Iterable[Sequence] | None = None) -> None:
        """Start waiting sequences, in order or as `among` gives them, while budget, rows and blocks last."""
        line, batch = self.builder.discipline.head_of_line, self.builder.batch
        passed: list[Sequence] = []
        deferred = 0
        may_displace = self.builder.may_displace
        if step.budget <= 0 or (batch.full and not may_displace):  # nobody can start; who is next hears why
            if (first := self.builder.waiting.first()) is not None and step.blocked[0] is None:
                step.blocked = (first, self.try_one(step, first) or "")
            return
        for sequence in self.candidates() if among is None else among:
            if step.displaced and any(sequence is one for one, _ in step.preempted):
                return  # it has just gone, and so would all behind it
            reason = self.try_one(step, sequence)
            if reason is not None and may_displace and step.blocked[0] is None:
                reason = self._displace(step, sequence, reason)
            if reason is None:
                for blocked in passed:
                    line.passed(blocked)
                continue
            if step.blocked[0] is None:
                step.blocked = (sequence, reason)
            else:
                step.tried[sequence.id] = reason
            if step.budget <= 0 or batch.full:
                return
            if reason.startswith(DEFERRED):
                deferred += 1
                if deferred >= MOST_DEFERRED:
                    return
                continue
            if not line.may_pass(sequence, reason):
                return
            passed.append(sequence)
            if len(passed) >= line.window:
                return

    def _displace(self, step: Step, sequence: Sequence, reason: str) -> str | None:
        """Start the sequence in the place of worse ones, if the discipline lets it. Else the reason stands."""
        builder, before = self.builder, len(step.preempted)
        if not builder.discipline.displacement.make_room(builder, step, sequence, reason):
            return reason
        step.displaced += len(step.preempted) - before
        builder.totals.displaced += len(step.preempted) - before
        return self.try_one(step, sequence)

    def candidates(self) -> Iterable[Sequence]:
        """Waiting sequences in order, each once, while those admitted leave the queue."""
        if self._walk is not None:
            yield from self._walk()
            return
        waiting = self.builder.waiting
        stayed: set[str] = set()  # those yielded that could not start
        while (sequence := waiting.first()) is not None and sequence.id not in stayed:
            yield sequence
            if sequence.row < 0:
                stayed.add(sequence.id)
        # The first in line stays, and others may pass it: a few at a time, as the queue changes while we look.
        while some := [s for s in islice(waiting, len(stayed) + LOOK) if s.id not in stayed]:
            for sequence in some:
                yield sequence
                if sequence.row < 0:
                    stayed.add(sequence.id)

    def resume_kept(self, step: Step) -> None:
        """Bring held and swapped sequences back, in the order they arrived, until one does not fit."""
        for sequence in sorted(self.builder.keeper.sequences.values(), key=lambda sequence: sequence.number):
            if (reason := self.try_one(step, sequence)) is not None:
                step.blocked = (sequence, reason)
                return

    # -- one sequence -----------------------------------------------------------------------------------------------

    def try_one(self, step: Step, sequence: Sequence, most: int | None = None, unit: int = 1) -> str | None:
        """Start the sequence in this step. A reason when it cannot. `most` and `unit` as of `FirstChunk`."""
        builder = self.builder
        builder.trying = sequence
        reason = self._try(step, sequence, most, unit)
        builder.trying = None
        return reason

    def _try(self, step: Step, sequence: Sequence, most: int | None, unit: int) -> str | None:
        builder = self.builder
        if step.budget <= 0:
            return f"budget: all {builder.config.max_num_batched_tokens} tokens of the step are given"
        if builder.batch.full:
            return f"slots: all {builder.config.max_num_seqs} are taken"
        if step.part:
            return f"slots: one prompt at a time is cut, and {step.part} is"
        match = builder.match(sequence)
        if (reason := builder.promotions.fetch(sequence, match)) is not None:
            return reason
        if self._hold is not None and (reason := self._hold(sequence, match)) is not None:
            return reason
        chunk = FirstChunk(builder.config, step, sequence, match.length, most, unit)
        if (reason := chunk.size()) is not None:
            return reason
        if (reason := builder.discipline.admission.refuse(builder, sequence, match, chunk.tokens)) is not None:
            return reason
        chunk.note()
        self._start(step, sequence, match, chunk.tokens)
        return None

    def _start(self, step: Step, sequence: Sequence, match: Match, count: int) -> None:
        """Move a waiting sequence into the batch with `count` tokens after those matched."""
        builder = self.builder
        batch, keeper, size = builder.batch, builder.keeper, builder.config.block_size
        builder.waiting.remove(sequence)
        promoted = builder.promotions.take(sequence, match)
        if sequence.kept_blocks is None:
            sequence.lease = builder.kv.open(match, sequence.namespace)
        end = match.length + count
        needs = int(sequence.tokens.size) if step.whole_kv else end
        fresh = builder.kv.allocate(max(-(-needs // size) - len(match.blocks), 0))
        if sequence.kept_tokens:
            step.kept[sequence.id] = match.length
        if promoted:
            step.swap_in += zip(promoted, fresh, strict=False)
            step.promoted[sequence.id] = len(promoted)
            builder.totals.promoted_blocks += len(promoted)
        elif not keeper.swap_in(step, sequence, match, fresh) and match.length > len(match.blocks) * size:
            step.copies.append((match.tail_block, fresh[0]))
        row = batch.enter(sequence)
        batch.give_blocks(row, match.blocks)
        batch.give_blocks(row, fresh)
        batch.computed[row] = end
        builder.register(row, end // size)
        step.put(row, count)
        step.entered.append(Entered(row, sequence.id, sequence.request.params, sequence.seed, sequence.prompt_length))
        step.cached[sequence.id] = match.length
        if sequence.kept_tokens:
            keeper.forget(sequence)
        (step.new if sequence.state is SequenceState.WAITING else step.resumed).append(sequence)
        self._count(sequence, match.length, sequence.id in step.kept)
        if self._started is not None:
            self._started(sequence, match.length)
        sequence.account.enters(step.now, step.number, sequence.tokens.size > sequence.prompt_length)
        sequence.state = SequenceState.RUNNING
        sequence.fetched = False
        sequence.leader = None  # should it come back, it has tokens of its own

    def _count(self, sequence: Sequence, cached: int, kept: bool) -> None:
        totals = self.builder.totals
        if sequence.state is SequenceState.WAITING:
            sequence.cached_tokens = min(cached, sequence.prompt_length)
            totals.prompt_tokens += sequence.prompt_length
            totals.prefix_query_tokens += int(sequence.tokens.size)
            totals.prefix_hit_tokens += cached
        else:
            again = prefilled_again(sequence, cached)
            sequence.recomputed_tokens += again
            totals.recomputed_tokens += again
            totals.resumed_hit_tokens += 0 if kept else cached


def prefilled_again(sequence: Sequence, cached: int) -> int:
    """Tokens a sequence prefills on its return after a preemption because its K/V were lost.

    Those that had K/V and are not found again; with them the newest token, where it would only have been decoded.
    """
    lost, size = sequence.lost_tokens - cached, int(sequence.tokens.size)
    if lost <= 0:
        return 0
    return lost + (sequence.lost_tokens == size - 1 >= sequence.prompt_length)
