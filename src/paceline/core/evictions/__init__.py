"""Who yields when KV is exhausted."""

from paceline.core.evictions.interface import Eviction
from paceline.core.evictions.least_urgent import LeastUrgent
from paceline.core.evictions.nobody import Nobody
from paceline.core.evictions.victims import LatestArrival, LeastLost, LeastPreferred, Newest, ShortestOutput

__all__ = [
    "Eviction",
    "LatestArrival",
    "LeastLost",
    "LeastPreferred",
    "LeastUrgent",
    "Newest",
    "Nobody",
    "ShortestOutput",
]
