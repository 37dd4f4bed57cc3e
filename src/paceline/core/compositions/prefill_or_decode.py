"""A step is all prefill or all decode, and prefill goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.config import SchedulerConfig
from paceline.core.phases import by_arrival, by_phase, still_running
from paceline.core.request import RowArray
from paceline.core.step import ANY, FIRST, ONE
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.discipline import Discipline
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class PrefillOrDecode:
    """Waiting sequences that can start, and unfinished prompts, take the step alone; otherwise everybody decodes.

    - `cut`: which prompts are cut to the tokens left. "first": only one longer than a whole step, and only as the first
      (nano-vllm; with chunked prefill off, nobody: vLLM V0, LightLLM). "one": any, but one prompt at a time (SGLang,
      mini-SGLang). "any".
    - `mixed`: decodes first, then prefill in the same step (vLLM 0.1.0; SGLang's mixed chunk).
    - `interval`: decode steps after a prefill step before the next one (LMDeploy's PyTorch engine; SGLang's
      prefill-decode interval), not kept while nobody decodes or fewer than `below` of the slots are wanted, nor, where
      `early`, once a whole step of prompt tokens waits. 0: none.
    - `spare`: blocks that must be free when a row decodes beside others, needed or not (vLLM V0: 1).

    While a preempted sequence's K/V wait on the host or in place, nobody new starts. They come back after the decodes
    of a step that preempted nobody.
    """

    cut: str = FIRST
    mixed: bool = False
    interval: int = 0
    below: float = 0.0
    early: bool = False
    spare: int = 0

    def check(self, config: SchedulerConfig, discipline: Discipline) -> None:
        if self.cut not in (ANY, FIRST, ONE):
            raise ConfigError(f"knob cut of {discipline.name}", self.cut, f"one of {ANY}, {FIRST}, {ONE}")

    def compose(self, builder: StepBuilder, step: Step) -> None:
        step.cut = self.cut
        step.whole_kv = self.cut == FIRST
        decodes, prompts = by_phase(builder.batch, builder.batch.order)
        if not self.mixed and self._may_prefill(builder, decodes):
            self._prefill(builder, step, prompts)
            if len(step.rows):
                builder.memory = 0
                return
        builder.run(step, by_arrival(builder.batch, decodes), self.spare)
        if builder.memory is not None:
            builder.memory += 1
        if step.preempted:
            return
        builder.resume_kept(step)
        if self.mixed:
            self._prefill(builder, step, prompts)
        if not len(step.rows):
            builder.run(step, still_running(builder.batch, prompts))  # whatever it takes

    def _may_prefill(self, builder: StepBuilder, decodes: RowArray) -> bool:
        if not self.interval or builder.memory is None or builder.memory >= self.interval or not decodes.size:
            return True
        batch, waiting = builder.batch, builder.waiting
        if len(batch) + len(waiting) < self.below * builder.config.max_num_seqs:
            return True
        if self.early:
            tokens = 0
            for sequence in waiting:
                tokens += int(sequence.tokens.size)
                if tokens >= builder.config.max_num_batched_tokens:
                    return True
        return False

    def _prefill(self, builder: StepBuilder, step: Step, prompts: RowArray) -> None:
        if prompts.size:
            self._go_on(builder, step, prompts)
        if builder.keeper.sequences:
            step.closed = "KV: preempted sequences come back before others start"
        else:
            builder.admit(step)

    def _go_on(self, builder: StepBuilder, step: Step, prompts: RowArray) -> None:
        """The next parts of unfinished prompts; under "one" only as far as free blocks go."""
        if self.cut != ONE:
            builder.run(step, prompts)
            return
        batch = builder.batch
        for row in prompts.tolist():
            room = (int(batch.held[row]) + builder.kv.available) * batch.block_size - int(batch.computed[row])
            count = min(
                int(batch.length[row] - batch.computed[row]), step.chunk_limit or step.budget, step.budget, room
            )
            if count > 0:
                builder.extend(step, row, count)
            if batch.computed[row] < batch.length[row]:
                step.part = batch.occupant[row].id
