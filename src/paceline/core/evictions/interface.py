"""Eviction: KV is exhausted; who yields, and how? The fifth decision point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


class Eviction(Protocol):
    @property
    def yields_turn(self) -> bool:
        """When a row has to give up its own place, may the rows after it still run in this step?"""
        ...

    @property
    def how(self) -> str:
        """What happens to the victim's K/V: recompute, swap or hold."""
        ...

    @property
    def front(self) -> bool:
        """Does the victim wait in its old place, before those that have not started? Else behind everybody."""
        ...

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        """The running row to preempt so that `row` can grow; may be `row` itself. None: nobody yields."""
        ...
