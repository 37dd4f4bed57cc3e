"""What to do when the scheduler itself fails: a defect, but not the end of everybody's request.

Its state cannot be trusted any more, so a new one takes over everything that is unfinished, each sequence with its
tokens so far. To the requests that is a preemption.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace

import numpy as np

from paceline.core.plan import IntArray
from paceline.core.request import Request, Sequence
from paceline.core.scheduler import Scheduler


def suspects(scheduler: Scheduler) -> list[Sequence]:
    """Whom `schedule` was busy with when it raised: who was being admitted, else the step's rows, else the first."""
    builder = scheduler.builder
    if builder.trying is not None:
        return [builder.trying]
    step = builder.step
    rows = [] if step is None or step is scheduler.step else [int(row) for row in step.rows]
    if found := [sequence for row in rows if (sequence := builder.batch.occupant[row]) is not None]:
        return found
    return scheduler.running() or scheduler.live()[:1]


def start_again(scheduler: Scheduler) -> Scheduler:
    """An empty scheduler like this one, with its totals."""
    fresh = Scheduler(scheduler.config, scheduler.discipline)
    for spec in fields(scheduler.totals):
        setattr(fresh.totals, spec.name, getattr(scheduler.totals, spec.name))
    return fresh


def resumed(scheduler: Scheduler, request: Request, sequences: Iterable[Sequence], now: float) -> Request:
    """The request as another scheduler takes it over, with those sequences that are unfinished."""
    tokens = {sequence.index: _generated(scheduler, sequence) for sequence in sequences}
    elapsed = max((now - sequence.submitted for sequence in sequences), default=0.0)

    def left(seconds: float | None) -> float | None:
        return None if seconds is None else max(seconds - elapsed, 0.0)

    fresh = len(tokens) == request.params.n and not any(generated.size for generated in tokens.values())
    return replace(
        request,
        resumed=None if fresh else tokens,
        queue_timeout=left(request.queue_timeout),
        timeout=left(request.timeout),
    )


def _generated(scheduler: Scheduler, sequence: Sequence) -> IntArray:
    batch, known = scheduler.batch, sequence.tokens
    if sequence.row >= 0:
        known = batch.tokens[sequence.row, : batch.length[sequence.row]]
    generated: IntArray = np.array(known[sequence.prompt_length :], np.int32)
    return generated
