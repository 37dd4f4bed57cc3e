"""What computing and moving K/V costs here, as measured while running."""

from __future__ import annotations

from paceline.core.plan import Moved, StepPlan, StepResult

_WEIGHT = 0.2  # of the newest step in the moving averages
_FEWEST = 16  # prompt tokens below which a step says little about what one costs


class Costs:
    """Moving averages, in seconds; None until something was measured.

    They follow from what executors report, not from a clock: the same results give the same decisions.
    """

    def __init__(self) -> None:
        self.token: float | None = None  # to compute a prompt token
        self.out: float | None = None  # a block from the device to the host
        self.into: float | None = None  # a block from the host to the device
        self.read: float | None = None  # a block from disk to the host
        self.write: float | None = None  # a block from the host to disk

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """A step was executed."""
        moved = result.moved or Moved()
        self.out = _average(self.out, moved.out_seconds, moved.out_blocks)
        self.into = _average(self.into, moved.in_seconds, moved.in_blocks)
        self.read = _average(self.read, moved.read_seconds, moved.read_blocks)
        self.write = _average(self.write, moved.write_seconds, moved.written_blocks)
        tokens = int(plan.counts.sum())
        prompt = tokens - int(plan.rows.size)
        if prompt >= _FEWEST and prompt * 2 >= tokens:
            spent = moved.out_seconds + moved.in_seconds + moved.read_seconds + moved.write_seconds
            self.token = _average(self.token, max(result.seconds - spent, 0.0), tokens)

    def compute(self, tokens: int) -> float | None:
        """Seconds to compute so many prompt tokens."""
        return None if self.token is None else self.token * tokens

    def load(self, host: int, disk: int = 0) -> float | None:
        """Seconds to bring `host` blocks from the host to the device, after `disk` of them from disk to the host."""
        if self.into is None or (disk and self.read is None):
            return None
        return self.into * host + (self.read or 0.0) * disk

    def swap(self, blocks: int) -> float | None:
        """Seconds to take blocks to the host and to bring them back."""
        return None if self.out is None else (self.out + (self.out if self.into is None else self.into)) * blocks


def _average(old: float | None, seconds: float, count: int) -> float | None:
    if not count:
        return old
    new = seconds / count
    return new if old is None else old + _WEIGHT * (new - old)
