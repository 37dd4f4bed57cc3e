"""Nobody yields to a row without room: it waits where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class Skipped:
    """The row keeps its KV and is left out of the step. After FastGen.

    For compositions that preempt somebody themselves when nobody can run at all.
    """

    yields_turn: bool = True

    @property
    def how(self) -> str:
        return "recompute"

    @property
    def front(self) -> bool:
        return False

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        return None
