"""A prefill step, a decode step, a prefill step, ..."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.phases import by_arrival, by_phase
from paceline.core.request import RowArray

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class AlternatingTurns:
    """Strictly in turns: prompt chunks within the token budget, then decodes. After Sarathi-Serve's simple chunking.

    A turn with nothing to do falls to the other side. A prompt's blocks are all given when it starts. Beside others, a
    row only decodes while `spare` blocks are free, needed or not.
    """

    spare: int = 1

    def compose(self, builder: StepBuilder, step: Step) -> None:
        step.whole_kv = True
        decodes, prompts = by_phase(builder.batch, builder.batch.order)
        decode_turn = bool(builder.memory)
        if not decode_turn:
            self._prefill(builder, step, prompts)
        if not len(step.rows):
            self._decode(builder, step, decodes)
            builder.memory = False
            if decode_turn and not len(step.rows) and not step.preempted:
                self._prefill(builder, step, prompts)

    def _prefill(self, builder: StepBuilder, step: Step, prompts: RowArray) -> None:
        builder.run(step, by_arrival(builder.batch, prompts))
        if builder.keeper.sequences:
            step.closed = "KV: preempted sequences come back before others start"
        else:
            builder.admit(step)
        builder.memory = len(step.rows) > 0

    def _decode(self, builder: StepBuilder, step: Step, decodes: RowArray) -> None:
        builder.run(step, by_arrival(builder.batch, decodes), self.spare)
        if not step.preempted:
            builder.resume_kept(step)
            step.closed = "turn: this step decodes, the next one starts others"
