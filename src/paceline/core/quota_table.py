"""Quotas from the tables of a file or a script, checked key by key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.core.quotas import RATES, Quota, Quotas, Rate
from paceline.errors import ConfigError

UNLIMITED = "unlimited"
QUOTA_KEYS = (*RATES, "concurrency", "borrow")


def parse_quotas(default: Mapping[str, Any], tenants: Mapping[str, Mapping[str, Any]], where: str = "") -> Quotas:
    """`default` and `tenants.NAME` hold QUOTA_KEYS and `weight`; a tenant has what it does not name from `default`.

    ConfigError names the key (after `where`, the file), its value and what is allowed.
    """
    everybody = parse_quota(default, Quota(), f"{where}default")
    parsed, weights = {}, {}
    for name, table in tenants.items():
        parsed[name] = parse_quota(table, everybody, f"{where}tenants.{name}")
        if "weight" in table:
            weights[name] = number(f"{where}tenants.{name}.weight", table["weight"], 0.0)
    return Quotas(everybody, parsed, weights)


def parse_quota(table: Mapping[str, Any], base: Quota, where: str) -> Quota:
    """One tenant's limits; `base` says those that are not named, "unlimited" lifts one."""
    values: dict[str, Any] = {}
    for name in QUOTA_KEYS:
        value = table.get(name)
        key = f"{where}.{name}"
        if value is None:
            values[name] = getattr(base, name)
        elif name == "borrow":
            values[name] = flag(key, value)
        elif value == UNLIMITED:
            values[name] = None
        elif name == "concurrency":
            if type(value) is not int or value < 1:
                raise ConfigError(key, value, f'a whole number of at least 1, or "{UNLIMITED}"')
            values[name] = value
        else:
            values[name] = _rate(key, value)
    return Quota(**values)


def _rate(key: str, value: Any) -> Rate:
    if not isinstance(value, Mapping) or set(value) != {"rate", "burst"}:
        raise ConfigError(key, value, f'{{ rate = units a second, burst = units at once }}, or "{UNLIMITED}"')
    rate = number(f"{key}.rate", value["rate"], 0.0)
    burst = number(f"{key}.burst", value["burst"], 0.0)
    if key.endswith(".requests") and burst < 1:
        raise ConfigError(f"{key}.burst", burst, "at least 1, the price of a request")
    return Rate(rate, burst)


def number(key: str, value: Any, above: float) -> float:
    if type(value) not in (int, float) or not above < value < math.inf:
        raise ConfigError(key, value, f"a number above {above:g}")
    return float(value)


def flag(key: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ConfigError(key, value, "true or false")
    return value
