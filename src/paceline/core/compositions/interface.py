"""Composition: what shares a step? The fourth decision point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder


class Composition(Protocol):
    def compose(self, builder: StepBuilder, step: Step) -> None:
        """Fill the step, through `builder.run` and `builder.admit`."""
        ...
