"""What orders that share between tenants have in common."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigError


def grown(column: npt.NDArray[np.float64], index: int, value: float) -> npt.NDArray[np.float64]:
    """A copy of the column that has `index`, filled up with `value`."""
    column_grown = np.full(max(2 * column.size, index + 1), value)
    column_grown[: column.size] = column
    return column_grown


def reweighed(rates: npt.NDArray[np.float64], weights: Mapping[str, float], tenants: Mapping[str, int]) -> None:
    """Set one over the weight, 1 for those not named, of the tenants that have an index in `rates`."""
    for tenant, index in tenants.items():
        if index < rates.size:
            rates[index] = 1.0 / weights.get(tenant, 1.0)


def check_weights(weights: Mapping[str, float]) -> None:
    """ConfigError for a weight that is none."""
    for tenant, weight in weights.items():
        if type(weight) not in (int, float) or not 0.0 < weight < float("inf"):
            raise ConfigError(f"weights.{tenant}", weight, "a number above 0")
