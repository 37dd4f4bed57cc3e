"""Who came later yields to who came first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class NewerThan:
    """The one that arrived last, if later than the row; who has nobody behind it stays in its row without running.

    After LMDeploy's TurboMind.
    """

    yields_turn: bool = False
    how: str = "recompute"
    front: bool = True

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        batch = builder.batch
        last = int(batch.order[batch.number[batch.order].argmax()])
        return last if batch.number[last] > batch.number[row] else None
