"""Head of line: what if the first in the queue does not fit? The third decision point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paceline.core.request import Sequence


class HeadOfLine(Protocol):
    @property
    def window(self) -> int:
        """How many waiting sequences are looked at in one step beyond those admitted."""
        ...

    def may_pass(self, blocked: Sequence, reason: str) -> bool:
        """May others overtake the one that could not be admitted, for the reason given?"""
        ...

    def passed(self, blocked: Sequence) -> None:
        """Somebody did."""
        ...


@dataclass(frozen=True)
class Stop:
    """Everything behind the first that does not fit waits too."""

    window: int = 1

    def may_pass(self, blocked: Sequence, reason: str) -> bool:
        return False

    def passed(self, blocked: Sequence) -> None:
        raise AssertionError("nobody overtakes under Stop")


@dataclass(frozen=True)
class Skip:
    """Look past a head that does not fit, but let each be overtaken at most `most` times; then it stops the queue.

    So a large request is delayed by a bounded amount of other work, and small ones use the blocks it cannot.
    """

    most: int = 32
    window: int = 32

    def may_pass(self, blocked: Sequence, reason: str) -> bool:
        return blocked.overtaken < self.most

    def passed(self, blocked: Sequence) -> None:
        blocked.overtaken += 1


@dataclass(frozen=True)
class SkipBudget:
    """As `Skip`, but only past one that wants more tokens than the step has left. After LMDeploy's PyTorch engine."""

    most: int = 32
    window: int = 32

    def may_pass(self, blocked: Sequence, reason: str) -> bool:
        return reason.startswith("budget") and blocked.overtaken < self.most

    def passed(self, blocked: Sequence) -> None:
        blocked.overtaken += 1
