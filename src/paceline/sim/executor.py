"""Stands where the engine has its model: a step takes the time that the latency model says."""

from __future__ import annotations

import numpy as np

from paceline.core.plan import Moved, StepPlan, StepResult
from paceline.core.request import IntArray
from paceline.sim.latency import StepTimes, shape_of

_SPREAD = 0x9E3779B1


class SimulatedExecutor:
    """Every row samples one token of its own over and over, so that no two sequences share what they generate."""

    def __init__(
        self,
        times: StepTimes,
        rows: int,
        block_bytes: float = 0.0,
        pcie_bandwidth: float = 32e9,
        disk_bandwidth: float = 3e9,
    ) -> None:
        """`block_bytes` and the bandwidths (bytes/s) price the blocks that a step moves between tiers."""
        self.times = times
        self.row_tokens: IntArray = np.zeros(rows, np.int32)
        self._host = block_bytes / pcie_bandwidth  # seconds a block
        self._disk = block_bytes / disk_bandwidth

    def execute(self, plan: StepPlan) -> StepResult:
        """What the engine's executor returns, at once; `seconds` is how long it would have taken."""
        for entered in plan.entered:
            self.row_tokens[entered.row] = self.token(entered.seed)
        seconds = self.times.seconds(shape_of(plan)) if plan.rows.size else 0.0
        moved = self._moved(plan)
        if moved is not None:
            seconds += moved.out_seconds + moved.in_seconds + moved.read_seconds + moved.write_seconds
        return StepResult(self.row_tokens[plan.rows[plan.samples]], seconds, moved=moved)

    def _moved(self, plan: StepPlan) -> Moved | None:
        """What the step moves between device, host and disk, one after the other."""
        out, into = len(plan.swap_out), len(plan.swap_in)
        read, written = len(plan.from_disk), len(plan.to_disk)
        if not (out or into or read or written):
            return None
        host, disk = self._host, self._disk
        return Moved(out, host * out, into, host * into, read, disk * read, written, disk * written)

    @staticmethod
    def token(seed: int) -> int:
        """What the sequence of that seed samples, every time."""
        return (seed * _SPREAD + 12345) & 0x3FFFFFFF
