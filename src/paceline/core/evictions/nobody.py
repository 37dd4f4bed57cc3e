"""Nobody yields: the blocks of a running sequence were promised to it when it started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class Nobody:
    """No preemption, ever. Goes with an admission that reserves whole lives."""

    yields_turn: bool = True

    @property
    def how(self) -> str:
        return "recompute"

    @property
    def front(self) -> bool:
        return True

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        return None
