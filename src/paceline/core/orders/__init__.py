"""The queue policies, one file each, and their table."""

from __future__ import annotations

from paceline.core.orders.deadline import DeadlinePolicy
from paceline.core.orders.deficit import DeficitPolicy
from paceline.core.orders.depth_first import DepthFirstPolicy
from paceline.core.orders.fcfs import FcfsPolicy
from paceline.core.orders.feedback import FeedbackPolicy
from paceline.core.orders.hrrn import HighestRatioPolicy
from paceline.core.orders.interface import Order, Policy
from paceline.core.orders.levels import LevelsPolicy
from paceline.core.orders.longest_prefix import LongestPrefixPolicy
from paceline.core.orders.priority import PriorityPolicy
from paceline.core.orders.shortest import ShortestPolicy, ShortestRemainingPolicy
from paceline.core.orders.shuffled import ShuffledPolicy
from paceline.core.orders.slot import SlotPolicy
from paceline.core.orders.turns import TurnsPolicy
from paceline.core.orders.vtc import VtcPolicy

ORDERS: dict[str, Policy] = {
    "fcfs": FcfsPolicy(),
    "priority": PriorityPolicy(),
    "levels": LevelsPolicy(),
    "hrrn": HighestRatioPolicy(),
    "lpm": LongestPrefixPolicy(),
    "dfs": DepthFirstPolicy(),
    "vtc": VtcPolicy(),
    "dlpm": DeficitPolicy(),
    "sjf": ShortestPolicy(),
    "srtf": ShortestRemainingPolicy(),
    "edf": DeadlinePolicy(),
    "mlfq": FeedbackPolicy(),
    "slot": SlotPolicy(),
    "turns": TurnsPolicy(),
    "random": ShuffledPolicy(),
}

__all__ = ["ORDERS", "Order", "Policy"]
