"""Admission: may this sequence start now? The second decision point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core.config import SchedulerConfig
from paceline.core.request import Sequence
from paceline.kv.interface import Match

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


class Admission(Protocol):
    def refuse(self, builder: StepBuilder, sequence: Sequence, match: Match, tokens: int) -> str | None:
        """Why the sequence may not start with `tokens` tokens after the cached ones; None: it may."""
        ...

    def most_blocks(self, config: SchedulerConfig, prompt: int, most: int) -> int:
        """Blocks this rule asks for, at worst, for a sequence of `prompt` tokens that may grow to `most` in all.

        One capacity rule for the door and for admission: what asks for more than there is is refused on arrival.
        """
        ...
