"""Who yields when KV is exhausted."""

from typing import Any

from paceline.core.evictions.interface import Eviction
from paceline.core.evictions.least_urgent import LeastUrgent
from paceline.core.evictions.nobody import Nobody
from paceline.core.evictions.victims import (
    LatestArrival,
    LeastLost,
    LowestPriority,
    MostKV,
    Newest,
    ShortestOutput,
)

# Whom a user may have yield under any row that preempts. When it has to be the row that wants to grow, the rows after
# it run: not every composition takes rows in the order the victims are chosen by, and somebody must get on.
VICTIMS: dict[str, Any] = {
    "newest": Newest(yields_turn=True),
    "latest-arrival": LatestArrival(yields_turn=True),
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
    "LeastUrgent",
    "LowestPriority",
    "MostKV",
    "Newest",
    "Nobody",
    "ShortestOutput",
]
