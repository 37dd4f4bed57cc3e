"""Overload: the door is full or late. The sixth decision point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from paceline.core.request import Request

if TYPE_CHECKING:
    from paceline.core.scheduler import Scheduler


class Overload(Protocol):
    def refuse(self, scheduler: Scheduler, request: Request, now: float) -> str | None:
        """Why the request is not let in; None: it is."""
        ...

    def priority(self, request: Request) -> int:
        """The priority it waits with: what the client asked for, or what the door makes of it."""
        ...


@dataclass(frozen=True)
class Accept:
    """Everything that can ever run may wait."""

    def refuse(self, scheduler: Scheduler, request: Request, now: float) -> str | None:
        return None

    def priority(self, request: Request) -> int:
        return request.priority
