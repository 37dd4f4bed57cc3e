"""Queues per priority level with limits and timeouts: an overload rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core.config import SchedulerConfig
from paceline.core.orders.levels import Levels
from paceline.core.request import Request, Sequence
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.discipline import Discipline
    from paceline.core.scheduler import Scheduler

POLICY = ("max_queue_size", "default_timeout_microseconds", "timeout_action")


@dataclass(frozen=True)
class QueuePolicy:
    """What holds for one level."""

    max_queue_size: int
    default_timeout_microseconds: int
    timeout_action: str

    def __post_init__(self) -> None:
        for name in POLICY[:2]:
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ConfigError(name, value, "a whole number of at least 0; 0 means no limit")
        if self.timeout_action not in ("reject", "delay"):
            raise ConfigError("timeout_action", self.timeout_action, "reject or delay")

    @property
    def delays(self) -> bool:
        return self.timeout_action == "delay"


@dataclass(frozen=True)
class LevelQueues:
    """Priority levels 1 (first) to `priority_levels`, each with a queue limit and a timeout (after Triton).

    A request without a valid level gets `default_priority_level`. `levels` changes the policy of single levels:
    {"2": {"max_queue_size": 8, "default_timeout_microseconds": 5000, "timeout_action": "delay"}}. A full queue
    refuses at the door; a request whose time is up is answered (reject) or goes behind its level (delay).
    """

    priority_levels: int = 0  # 0: one queue, priorities do not matter
    default_priority_level: int = 0
    max_queue_size: int = 0
    default_timeout_microseconds: int = 0
    timeout_action: str = "reject"
    levels: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.priority_levels < 0:
            raise ConfigError("priority_levels", self.priority_levels, "a whole number of at least 0")
        if self.priority_levels and not 1 <= self.default_priority_level <= self.priority_levels:
            raise ConfigError(
                "default_priority_level", self.default_priority_level, f"from 1 to {self.priority_levels}"
            )
        allowed = [str(level) for level in range(1, self.priority_levels + 1)]
        for level, policy in self.levels.items():
            if level not in allowed:
                raise ConfigError("levels", level, "a level: one of " + (", ".join(allowed) or "none without any"))
            if not isinstance(policy, Mapping) or set(policy) - set(POLICY):
                raise ConfigError(f"levels.{level}", policy, "an object with keys of " + ", ".join(POLICY))
            self.policy(int(level))
        self.policy(0)

    def policy(self, level: int) -> QueuePolicy:
        values = {name: getattr(self, name) for name in POLICY}
        return QueuePolicy(**{**values, **self.levels.get(str(level), {})})

    def check(self, config: SchedulerConfig, row: Discipline) -> None:
        delays = any(self.policy(level).delays for level in range(self.priority_levels + 1))
        if row.order != "levels" and (delays or self.priority_levels):
            raise ConfigError("--order", row.order, "levels, where priority_levels or timeout_action delay are set")

    def refuse(self, scheduler: Scheduler, request: Request, now: float) -> str | None:
        level = self.priority(request, scheduler.discipline.order)
        limit = self.policy(level).max_queue_size
        if not limit:
            return None
        waiting = scheduler.waiting
        size = waiting.size(level) if isinstance(waiting, Levels) else len(waiting)
        if size < limit:
            return None
        return f"the queue of priority level {level} is full: {size} wait, {limit} may"

    def priority(self, request: Request, order: str) -> int:
        if order != "levels":
            return request.priority
        if not self.priority_levels:
            return 0
        valid = 1 <= request.priority <= self.priority_levels
        return request.priority if valid else self.default_priority_level

    def expiry(self, sequence: Sequence) -> float | None:
        """When its time in the queue is up, in seconds of the caller's clock; None: never."""
        limit = self.policy(sequence.priority).default_timeout_microseconds
        return sequence.submitted + limit * 1e-6 if limit else None
