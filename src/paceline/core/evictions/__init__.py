"""Who yields when KV is exhausted."""

from paceline.core.evictions.interface import Eviction
from paceline.core.evictions.victims import LeastLost, LeastPreferred, Newest

__all__ = ["Eviction", "LeastLost", "LeastPreferred", "Newest"]
