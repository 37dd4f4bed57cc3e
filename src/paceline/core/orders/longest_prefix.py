"""Longest cached prefix first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.core.orders.cache_aware import CacheAware, CacheAwareKnobs
from paceline.core.orders.ranked import Floats
from paceline.errors import ConfigError


class LongestPrefix(CacheAware):
    def __init__(self, policy: LongestPrefixPolicy) -> None:
        super().__init__(policy)
        self._fcfs_above = policy.fcfs_above

    def rank(self) -> Floats:
        if self._fcfs_above and self.size > self._fcfs_above:
            return np.zeros(self.size)
        return -self.cached


@dataclass(frozen=True)
class LongestPrefixPolicy(CacheAwareKnobs):
    """Longest cached prefix first, after SGLang's lpm. `fcfs_above`: with more waiting, first come first (it has 128).

    The original has neither leaders nor aging, which are off here until asked for.
    """

    bound: ClassVar[str] = (
        "unbounded: the original's behaviour; with `stretch`, overdue after that many times the tokens it found "
        "waiting and `patience` more"
    )
    leaders: bool = False
    stretch: float = 0.0
    fcfs_above: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fcfs_above < 0:
            raise ConfigError("fcfs_above", self.fcfs_above, "a whole number of at least 0")

    def queue(self) -> LongestPrefix:
        return LongestPrefix(self)
