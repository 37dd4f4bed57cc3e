"""How many tokens a sequence gets in the step it starts in."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from paceline.core.config import SchedulerConfig
from paceline.core.request import Sequence
from paceline.core.step import FIRST, ONE, Step


def may_cut(config: SchedulerConfig, step: Step) -> bool:
    """May the next prompt be cut to the tokens left?"""
    return config.enable_chunked_prefill and (step.cut != FIRST or not len(step.rows))


@dataclass
class FirstChunk:
    """Sized by what the step has left and by how its composition has prompts cut.

    `most`: no more tokens than that; `unit`: a part that does not end the prompt is a multiple of so many.
    """

    config: SchedulerConfig
    step: Step
    sequence: Sequence
    found: int  # tokens of it that need not be computed
    most: int | None = None
    unit: int = 1
    tokens: int = 0
    cut: bool = False  # under ONE: its prompt goes on in the next step

    def size(self) -> str | None:
        """Set `tokens` and `cut`. A reason where it cannot start in this step."""
        step, whole = self.step, int(self.sequence.tokens.size) - self.found
        if step.sizes and step.bucket not in (None, bisect_left(step.sizes, whole)):
            return "bucket: prompts of another length share this step"
        count = min(whole, step.chunk_limit) if step.chunk_limit else whole
        if count > step.budget and not may_cut(self.config, step):
            return f"budget: needs {count} tokens at once and {step.budget} are left"
        count = min(count, step.budget) if self.most is None else min(count, step.budget, self.most)
        if self.unit > 1 and count < whole:
            count -= count % self.unit
            if count == 0:
                return f"budget: {step.budget} tokens are left, and prompts are cut by {self.unit}"
        self.cut = step.cut == ONE and count < whole
        if self.cut:
            edge = (self.found + count) // self.config.block_size * self.config.block_size
            if edge <= self.found and len(step.rows):
                return f"budget: {step.budget} tokens are left, and prompts are cut between blocks"
            count = edge - self.found if edge > self.found else count
        self.tokens = count
        return None

    def note(self) -> None:
        """It starts: what that means for those after it in the step."""
        step = self.step
        if self.cut:
            step.part = self.sequence.id
        if step.sizes:
            step.bucket = bisect_left(step.sizes, int(self.sequence.tokens.size) - self.found)
