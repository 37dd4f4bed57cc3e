"""Overload: the door is full or late. The sixth decision point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from paceline.core.request import Request
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.scheduler import Scheduler


class Overload(Protocol):
    def refuse(self, scheduler: Scheduler, request: Request, now: float) -> str | None:
        """Why the request is not let in; None: it is."""
        ...

    def priority(self, request: Request, order: str) -> int:
        """The priority it waits with under that order: what the client asked for, or what the door makes of it."""
        ...


@dataclass(frozen=True)
class Accept:
    """Everything that can ever run may wait."""

    def refuse(self, scheduler: Scheduler, request: Request, now: float) -> str | None:
        return None

    def priority(self, request: Request, order: str) -> int:
        return request.priority


@dataclass(frozen=True)
class MostRequests:
    """At most so many requests inside, whatever they do there, but for those over their tenant's quota. After TGI."""

    max_concurrent_requests: int = 128

    def __post_init__(self) -> None:
        if self.max_concurrent_requests < 1:
            raise ConfigError("max_concurrent_requests", self.max_concurrent_requests, "a whole number of at least 1")

    def refuse(self, scheduler: Scheduler, request: Request, now: float) -> str | None:
        inside = scheduler.num_requests - scheduler.entrance.num_parked
        if inside < self.max_concurrent_requests:
            return None
        return f"overloaded: {inside} requests are inside and {self.max_concurrent_requests} may be"

    def priority(self, request: Request, order: str) -> int:
        return request.priority
