"""Who yields when KV is exhausted."""

from typing import Any

from paceline.core.evictions.interface import Eviction
from paceline.core.evictions.least_urgent import LeastUrgent
from paceline.core.evictions.nobody import Nobody
from paceline.core.evictions.victims import (
    LatestArrival,
    LeastLost,
    LeastPreferred,
    LowestPriority,
    MostKV,
    Newest,
    ShortestOutput,
)

# Whom a user may have yield under any row that preempts.
VICTIMS: dict[str, Any] = {
    "newest": Newest(),
    "latest-arrival": LatestArrival(),
    "lowest-priority": LowestPriority(),
    "least-lost": LeastLost(),
    "shortest-output": ShortestOutput(),
    "most-kv": MostKV(),
}

__all__ = [
    "VICTIMS",
    "Eviction",
    "LatestArrival",
    "LeastLost",
    "LeastPreferred",
    "LeastUrgent",
    "LowestPriority",
    "MostKV",
    "Newest",
    "Nobody",
    "ShortestOutput",
]
