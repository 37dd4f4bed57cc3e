"""One batch at a time: nobody joins until all of it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class ClosedBatch:
    """Whole prompts of a new batch in one step, then decodes until everyone has ended (after FasterTransformer).

    Under a discipline that ends batches together, members that are done are padding: they keep row and K/V.
    """

    def compose(self, builder: StepBuilder, step: Step) -> None:
        if not run_batch(builder, step):
            builder.admit(step)


def run_batch(builder: StepBuilder, step: Step) -> bool:
    """Run who is left of the batch. False when there is none."""
    batch = builder.batch
    rows = batch.order
    if batch.done[rows].any():
        rows = rows[~batch.done[rows]]
    if not rows.size:
        return False
    builder.run(step, rows)
    close(step, len(batch))
    return True


def close(step: Step, members: int) -> None:
    """Say of those who wait that the batch is closed."""
    step.closed = f"batch: closed until it has ended; members: {members}"
