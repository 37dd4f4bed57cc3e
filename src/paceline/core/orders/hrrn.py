"""Highest response ratio next, over the tokens that have to be computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.core.orders.cache_aware import CacheAware, CacheAwareKnobs
from paceline.core.orders.ranked import Floats


class HighestRatio(CacheAware):
    """(waited + own) / own, highest first; both are prompt tokens to compute: others' since it came, and its own.

    Who is cached, or short, goes early, and everybody rises while others are served. With equal uncached lengths it
    is first come, first served.
    """

    def rank(self) -> Floats:
        own = np.maximum(self.tokens - self.cached, 1.0)
        ratio: Floats = -(self.clock.time - self.entered + own) / own
        return ratio


@dataclass(frozen=True)
class HighestRatioPolicy(CacheAwareKnobs):
    """Highest response ratio next over uncached tokens: warm and short prompts first, and aging built in."""

    bound: ClassVar[str] = (
        "aging: overdue after `stretch` times the tokens it found waiting and `patience` more; then only those overdue "
        "before it go first"
    )

    def queue(self) -> HighestRatio:
        return HighestRatio(self)
