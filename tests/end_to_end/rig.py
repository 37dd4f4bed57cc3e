"""The real scheduler and the real model in one process, with every setting of the scheduler free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.core.disciplines import discipline as discipline_named
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.core.scheduler import Scheduler
from paceline.exec.executor import ModelExecutor


@dataclass
class Rig:
    """Plays prompts (token ids) through a fresh scheduler on a shared executor.

    `before_step(rig, number)` may add or abort requests; `tokens[id]` are the generated tokens of a sequence.
    """

    executor: ModelExecutor
    scheduler: Scheduler = field(init=False)
    tokens: dict[str, list[int]] = field(init=False)
    steps: int = field(init=False)

    def start(
        self,
        discipline: str = "paceline",
        order: str | None = None,
        knobs: Mapping[str, object] | None = None,
        on_disk: Iterable[bytes] = (),
        **settings: object,
    ) -> None:
        defaults: dict[str, object] = {
            "num_blocks": self.executor.num_blocks,
            "block_size": self.executor.block_size,
            "max_num_seqs": self.executor.config.max_num_seqs,
            "max_model_len": 512,
            "max_num_batched_tokens": 1024,
        }
        row = discipline_named(discipline, order).with_knobs(knobs or {})
        self.scheduler = Scheduler(row.configure(**{**defaults, **settings}), row, on_disk)
        self.tokens = {}
        self.steps = 0

    def add(self, name: str, prompt: Sequence[int], params: SamplingParams, **fields: object) -> None:
        request = Request(name, np.array(prompt, np.int32), params, seed=params.seed or 0, **fields)  # type: ignore[arg-type]
        for sequence in self.scheduler.add(request, now=0.0):
            self.tokens[sequence.id] = []

    def run(self, before_step: Callable[[Rig, int], None] | None = None, most: int = 5000) -> dict[str, list[int]]:
        """Step until nothing is left; returns `tokens`."""
        while self.scheduler.has_work() and self.steps < most:
            if before_step is not None:
                before_step(self, self.steps)
            now = float(self.steps)
            plan = self.scheduler.schedule(now)
            self.steps += 1
            if plan is None:
                continue
            events = self.scheduler.complete(self.executor.execute(plan), now)
            for sequence, token in zip(events.sequences, events.tokens.tolist(), strict=True):
                self.tokens[sequence.id].append(token)
        assert not self.scheduler.has_work(), f"not finished after {most} steps: {self.scheduler.why()}"
        self.scheduler.check()
        return self.tokens
