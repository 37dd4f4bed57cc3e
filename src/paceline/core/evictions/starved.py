"""Nobody yields so that another can grow; who is left out may have to leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class Starved:
    """A row without room is left out of the step, and those behind it run. After transformers' continuous batching.

    For compositions that choose afterwards who of those left out is preempted; the fields say what becomes of it.
    """

    yields_turn: bool = True
    how: str = "recompute"
    front: bool = False

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        return None
