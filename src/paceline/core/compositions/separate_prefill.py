"""Prompts in steps of their own, at a rhythm; or, with chunked prefill, joining decodes every other step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.admissions.whole_life import WholeLife
from paceline.core.config import SchedulerConfig
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.discipline import Discipline
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass
class _Rhythm:
    """What the rule remembers from step to step."""

    waiting_tokens: int = 0  # decode steps since somebody joined, and one
    decode_next: bool = False  # somebody joined in the last step


@dataclass(frozen=True)
class SeparatePrefill:
    """After TGI's router: new requests are prefilled alone while the running ones pause, then join them.

    That happens when at least `waiting_served_ratio` times as many as run can start together, or after
    `max_waiting_tokens` steps without; and there is one decode step between two such steps at least. With chunked
    prefill neither number counts: prompts, the last one cut to the budget, are added to a step of the running ones,
    every second step at most.
    """

    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20

    def __post_init__(self) -> None:
        if not 0.0 <= self.waiting_served_ratio < 1e6:
            raise ConfigError("waiting_served_ratio", self.waiting_served_ratio, "a number of at least 0")
        if self.max_waiting_tokens < 0:
            raise ConfigError("max_waiting_tokens", self.max_waiting_tokens, "a whole number of at least 0")

    def check(self, config: SchedulerConfig, row: Discipline) -> None:
        if not isinstance(row.admission, WholeLife):
            raise ConfigError(
                f"admission of {row.name}", type(row.admission).__name__, "WholeLife, as it counts with it"
            )

    def compose(self, builder: StepBuilder, step: Step) -> None:
        if builder.memory is None:
            builder.memory = _Rhythm()
        rhythm: _Rhythm = builder.memory
        if not len(builder.batch):
            builder.admit(step)
            rhythm.waiting_tokens, rhythm.decode_next = 1, False
        elif builder.config.enable_chunked_prefill:
            self._run_chunks(builder, step)
            if rhythm.decode_next:
                step.closed = "batch: those that joined last take a step first"
            else:
                builder.admit(step)
            rhythm.decode_next = bool(step.entered)
        elif not rhythm.decode_next and self._join(builder, step, rhythm):
            rhythm.waiting_tokens, rhythm.decode_next = 1, True
        else:
            builder.run(step, builder.batch.order)
            rhythm.waiting_tokens += 1
            rhythm.decode_next = False
            if step.blocked[0] is None:
                step.closed = step.closed or "batch: those that joined last take a step first"

    def _join(self, builder: StepBuilder, step: Step, rhythm: _Rhythm) -> bool:
        """Start waiting sequences, if enough of them can. False when nobody did."""
        least = 0
        if rhythm.waiting_tokens < self.max_waiting_tokens:
            least = int(len(builder.batch) * self.waiting_served_ratio)
        if len(builder.waiting) >= least and self._can_start(builder, step, least):
            builder.admit(step)
        else:
            left = self.max_waiting_tokens - rhythm.waiting_tokens
            step.closed = f"batch: fewer than {least} can start together; {left} more steps until any may"
        return bool(step.entered)

    @staticmethod
    def _can_start(builder: StepBuilder, step: Step, least: int) -> bool:
        """Would `least` of the queue, in order, start in a step of their own?"""
        if least <= 1:
            return True
        admission, config = builder.discipline.admission, builder.config
        assert isinstance(admission, WholeLife)
        if len(builder.batch) + least > config.max_num_seqs:
            return False
        free, budget = admission.free(builder), step.budget
        for number, sequence in enumerate(builder.waiting, 1):
            match = builder.match(sequence)
            free -= admission.needs(config, sequence, match) + match.idle
            budget -= int(sequence.tokens.size) - match.length
            if free < 0 or budget < 0:
                return False
            if number == least:
                return True
        return False

    @staticmethod
    def _run_chunks(builder: StepBuilder, step: Step) -> None:
        """One token for who decodes; unfinished prompts share what the others leave, the oldest first."""
        batch = builder.batch
        rows = batch.order
        unfinished = batch.length[rows] - batch.computed[rows] > 1
        left = step.budget - (rows.size - 1)
        builder.run(step, rows[~unfinished])
        for row in rows[unfinished].tolist():
            count = max(1, min(int(batch.length[row] - batch.computed[row]), left))
            left -= count
            if builder.make_room(step, row, count):
                builder.extend(step, row, count)
