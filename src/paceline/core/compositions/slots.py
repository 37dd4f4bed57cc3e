"""Slots that live as long as the server, and a step that goes through them by number."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.phases import by_phase, still_running
from paceline.core.request import IntArray, RowArray, Sequence, SequenceState
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


class _Slots:
    """A slot is a row of the batch: who had it last, when it was given up, and who is to have it next."""

    def __init__(self, builder: StepBuilder) -> None:
        self.builder = builder
        rows = builder.config.max_num_seqs
        self.last: list[Sequence | None] = [None] * rows
        self.entered = np.zeros(rows, np.int64)  # [rows] by a count of enterings
        self.given_up = np.full(rows, -1, np.int64)  # [rows] by a count of givings up; -1: never had
        self.next: dict[int, Sequence] = {}
        self._count = 0
        self._taken: RowArray = builder.batch.order

    def look(self) -> None:
        """Note which slots were given up since the last step, the lowest first."""
        order = self.builder.batch.order
        if order is not self._taken:
            for row in np.setdiff1d(self._taken, order).tolist():
                self.given_up[row] = self._count
                self._count += 1
            self._taken = order

    def enter(self, row: int, sequence: Sequence) -> None:
        self.last[row] = sequence
        self.entered[row] = self.entered.max() + 1
        del self.next[row]
        self._taken = self.builder.batch.order

    def keep(self, preempted: list[Sequence]) -> None:
        """Those who were preempted come back to the slots they had, of several to the one they had last."""
        for sequence in preempted:
            rows = [row for row, last in enumerate(self.last) if last is sequence]
            self.next[max(rows, key=lambda row: int(self.entered[row]))] = sequence

    def assign(self, similarity: float) -> None:
        """Give those who wait, in order, the slots that nobody has or is to have."""
        builder, batch = self.builder, self.builder.batch
        self.next = {row: one for row, one in self.next.items() if one.state is not SequenceState.FINISHED}
        idle = np.setdiff1d(np.arange(len(self.last)), [*batch.order.tolist(), *self.next])
        seated = {sequence.id for sequence in self.next.values()}
        first = list(islice(builder.waiting, idle.size + len(seated))) if idle.size else []
        for sequence in first:
            if idle.size and sequence.id not in seated:
                row = self._choose(sequence, idle, similarity)
                self.next[row] = sequence
                idle = idle[idle != row]

    def _choose(self, sequence: Sequence, idle: IntArray, similarity: float) -> int:
        """Whose tokens begin most like the sequence's, if more than that share of it; else the one idle longest."""
        best, choice = similarity, -1
        if self.builder.config.enable_prefix_caching:
            for row in idle.tolist():
                last = self.last[row]
                if last is not None and last.namespace == sequence.namespace:
                    share = _common(last.tokens, sequence.tokens) / sequence.tokens.size
                    if share > best:
                        best, choice = share, row
        if choice >= 0:
            return choice
        return int(idle[::-1][np.argmin(self.given_up[idle[::-1]])])  # of several, the last


@dataclass(frozen=True)
class Slots:
    """One token for every decode, then prompts by slot number with what is left of the token budget.

    After llama.cpp's server. Who waits gets a slot as soon as one is idle: the one whose last tokens are more than
    `slot_prompt_similarity` of its own, from the first on, else the one idle for longest. `cont_batching` off: prompts
    only run when nobody decodes. In a step that preempts nobody starts; who was preempted keeps the slot.
    """

    slot_prompt_similarity: float = 0.1
    cont_batching: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.slot_prompt_similarity <= 1.0:
            raise ConfigError("slot_prompt_similarity", self.slot_prompt_similarity, "a share from 0 to 1")

    def compose(self, builder: StepBuilder, step: Step) -> None:
        if builder.memory is None:
            builder.memory = _Slots(builder)
        slots: _Slots = builder.memory
        slots.look()
        batch = builder.batch
        decodes, prompts = by_phase(batch, np.sort(batch.order))
        builder.run(step, decodes)
        if decodes.size and not self.cont_batching:
            step.closed = "decodes: prompts wait until nobody decodes"
        else:
            builder.run(step, still_running(batch, prompts) if step.preempted else prompts)
        if step.preempted:
            slots.keep([sequence for sequence, _ in step.preempted])
        elif len(builder.waiting) and not step.closed:
            self._start(builder, step, slots)

    def _start(self, builder: StepBuilder, step: Step, slots: _Slots) -> None:
        slots.assign(self.slot_prompt_similarity)
        if not slots.next:
            builder.admit(step, ())  # says why
        for row, sequence in sorted(slots.next.items()):
            builder.batch.seat(row)
            if (reason := builder.try_admit(step, sequence)) is not None:
                step.blocked = (sequence, reason)
                return
            slots.enter(row, sequence)


def _common(one: IntArray, other: IntArray) -> int:
    """How many tokens both begin with."""
    size = min(one.size, other.size)
    if not size or one[0] != other[0]:
        return 0
    differ = one[:size] != other[:size]
    return int(differ.argmax()) if differ.any() else size
