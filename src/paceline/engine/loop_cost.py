"""What the loop itself adds to a step: scheduling it, completing it, and saying what came of it."""

from __future__ import annotations

import time

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.params import SamplingParams
from paceline.core.plan import StepPlan, StepResult
from paceline.core.scheduler import Scheduler
from paceline.engine import messages
from paceline.engine.core_loop import EngineLoop

_STEPS = 120


class _NoTime:
    """An executor whose steps take none."""

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(np.full(int(plan.samples.sum()), 7, np.int32))


def loop_cost(max_num_seqs: int) -> tuple[float, float]:
    """(seconds of a step, seconds of each row that gets a token in it), of decode steps with up to `max_num_seqs`."""
    few, many = 1, max(2, min(max_num_seqs, 64))
    low, high = _decode_seconds(few), _decode_seconds(many)
    per_row = max((high - low) / (many - few), 0.0)
    return max(low - few * per_row, 0.0), per_row


def _decode_seconds(rows: int) -> float:
    config = SchedulerConfig(num_blocks=rows * 16 + 16, max_num_seqs=rows, max_model_len=256)
    loop = EngineLoop(Scheduler(config), _NoTime())
    params = SamplingParams(max_tokens=_STEPS + 8, ignore_eos=True)
    for number in range(rows):
        prompt = np.arange(8 * number, 8 * number + 8, dtype=np.int32).tobytes()
        loop.handle(messages.Add(number=number, request_id=str(number), prompt=prompt, params=params, seed=number))
    taken = []
    for _ in range(_STEPS):
        begin = time.perf_counter()
        output = loop.step()
        if output is None:
            break
        messages.encode(output)
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))
