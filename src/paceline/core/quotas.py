"""What each tenant may use: token buckets and a number of requests at a time. Plain values, configuration only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.errors import ConfigError

RATES = ("requests", "prompt_tokens", "output_tokens")


@dataclass(frozen=True)
class Rate:
    """A token bucket: `rate` units a second flow in, at most `burst` lie in it."""

    rate: float
    burst: float

    def __post_init__(self) -> None:
        for name in ("rate", "burst"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0.0 < value < math.inf:
                raise ConfigError(name, value, "a number above 0")


@dataclass(frozen=True)
class Quota:
    """The limits of one tenant; None: no limit.

    Requests and prompt tokens are paid when a request starts, which it may when the bucket holds the price. Output
    tokens are paid as they are generated: a request may start while the bucket is not empty, and the debt has to be
    made good before the next. `concurrency` is how many requests may have started and not ended.
    `borrow`: requests over the quota run, unpaid, when nobody within quota waits and there is room.
    """

    requests: Rate | None = None
    prompt_tokens: Rate | None = None
    output_tokens: Rate | None = None
    concurrency: int | None = None
    borrow: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None and (type(self.concurrency) is not int or self.concurrency < 1):
            raise ConfigError("concurrency", self.concurrency, "a whole number of at least 1")
        if self.requests is not None and self.requests.burst < 1:
            raise ConfigError("requests.burst", self.requests.burst, "at least 1, the price of a request")


@dataclass(frozen=True)
class Quotas:
    """`default` holds for each tenant that is not named in `tenants`. `weights`: shares under a fair order."""

    default: Quota = field(default_factory=Quota)
    tenants: dict[str, Quota] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def of(self, tenant: str) -> Quota:
        return self.tenants.get(tenant, self.default)
