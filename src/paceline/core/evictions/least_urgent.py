"""Who comes last in the order yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class LeastUrgent:
    """The last of all running sequences in the order of the queue, which must be one that ranks running ones too."""

    yields_turn: bool = True
    how: str = "recompute"
    front: bool = True

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        key = builder.waiting.key  # type: ignore[attr-defined]
        return int(max(builder.batch.occupant[builder.batch.order], key=key).row)
