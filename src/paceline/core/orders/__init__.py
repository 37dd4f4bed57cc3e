"""The queue policies, one file each, and their table."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.orders.fcfs import Fcfs
from paceline.core.orders.interface import Order
from paceline.core.orders.levels import Levels
from paceline.core.orders.priority import Priority

ORDERS: dict[str, Callable[[], Order]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "levels": Levels,
}

__all__ = ["ORDERS", "Order"]
