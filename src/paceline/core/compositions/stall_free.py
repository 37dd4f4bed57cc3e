"""Every decode in every step, and prompt chunks in what is left of the token budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.phases import by_arrival, by_phase, still_running

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class StallFree:
    """Decodes by arrival, then unfinished prompts, then new ones, whose blocks are all given when they start.

    After Sarathi-Serve. Beside others, a row only decodes while `spare` blocks are free, needed or not. In a step that
    preempts nobody starts, unless `readmit_same_step` (Vidur's reading).
    """

    spare: int = 1
    readmit_same_step: bool = False

    def compose(self, builder: StepBuilder, step: Step) -> None:
        step.whole_kv = True
        batch = builder.batch
        decodes, prompts = by_phase(batch, by_arrival(batch, batch.order))
        builder.run(step, decodes, self.spare)
        builder.run(step, still_running(batch, prompts) if step.preempted else prompts)
        if step.preempted and not self.readmit_same_step:
            return
        if builder.keeper.sequences:
            builder.resume_kept(step)
            step.closed = "KV: preempted sequences come back before others start"
        else:
            builder.admit(step)
