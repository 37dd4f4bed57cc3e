"""Stands where the engine has its model: a step takes the time that the latency model says."""

from __future__ import annotations

import numpy as np

from paceline.core.plan import Moved, StepPlan, StepResult
from paceline.core.request import IntArray
from paceline.sim.latency import StepTimes, shape_of

_SPREAD = 0x9E3779B1


class SimulatedExecutor:
    """Every row samples one token of its own over and over, so that no two sequences share what they generate."""

    def __init__(self, times: StepTimes, rows: int, block_bytes: float = 0.0, pcie_bandwidth: float = 32e9) -> None:
        """`block_bytes` and `pcie_bandwidth` (bytes/s) price the blocks that a step swaps."""
        self.times = times
        self.row_tokens: IntArray = np.zeros(rows, np.int32)
        self._swap = block_bytes / pcie_bandwidth

    def execute(self, plan: StepPlan) -> StepResult:
        """What the engine's executor returns, at once; `seconds` is how long it would have taken."""
        for entered in plan.entered:
            self.row_tokens[entered.row] = self.token(entered.seed)
        seconds = self.times.seconds(shape_of(plan)) if plan.rows.size else 0.0
        moved = None
        if len(plan.swap_in) or len(plan.swap_out):
            out, into = len(plan.swap_out), len(plan.swap_in)
            moved = Moved(out, self._swap * out, into, self._swap * into)
            seconds += moved.out_seconds + moved.in_seconds
        return StepResult(self.row_tokens[plan.rows[plan.samples]], seconds, moved=moved)

    @staticmethod
    def token(seed: int) -> int:
        """What the sequence of that seed samples, every time."""
        return (seed * _SPREAD + 12345) & 0x3FFFFFFF
