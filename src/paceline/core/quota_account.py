"""What a tenant has used of its quota."""

from __future__ import annotations

from paceline.core.quotas import Quota, Rate

# Levels are sums of products of seconds: what is missing by less than this is there.
EPSILON = 1e-6

NEVER = float("inf")


class Bucket:
    """A token bucket. `promised`: the price of those let into the queue that have not started, and so not paid."""

    __slots__ = ("burst", "level", "promised", "rate", "since")

    def __init__(self, limit: Rate, now: float, level: float | None = None) -> None:
        self.rate, self.burst = limit.rate, limit.burst
        self.level = self.burst if level is None else min(level, self.burst)
        self.promised = 0.0
        self.since = now

    def refill(self, now: float) -> float:
        """The level now."""
        if now > self.since:
            self.level = min(self.burst, self.level + self.rate * (now - self.since))
            self.since = now
        return self.level

    def when(self, price: float, now: float) -> float:
        """When it can pay so much beside what is promised; NEVER: not before something promised is paid.

        A price above the burst can be paid when the bucket is full, and leaves a debt.
        """
        price = min(price, self.burst)
        if self.promised + price > self.burst + EPSILON:
            return NEVER
        missing = price + self.promised - self.refill(now)
        return now if missing <= EPSILON else now + missing / self.rate


class QuotaAccount:
    """The buckets of a tenant, and how many of its requests are running or about to."""

    def __init__(self, quota: Quota, now: float, before: QuotaAccount | None = None) -> None:
        """`before`: the account under the limits that held until now. Levels and debts stay; who is inside and what is
        promised has to be counted anew."""
        self.quota = quota
        self.inside = 0  # requests let in that have not ended

        def bucket(name: str) -> Bucket | None:
            limit: Rate | None = getattr(quota, name)
            if limit is None:
                return None
            old: Bucket | None = None if before is None else getattr(before, name)
            return Bucket(limit, now, None if old is None else old.refill(now))

        self.requests = bucket("requests")
        self.prompt_tokens = bucket("prompt_tokens")
        self.output_tokens = bucket("output_tokens")

    @property
    def overdrawn(self) -> bool:
        """The output bucket is empty: nobody may start."""
        return self.output_tokens is not None and self.output_tokens.level <= 0.0

    def when(self, prompt: int, now: float) -> tuple[float, str]:
        """When a request with such a prompt may come in, and what it waits for until then."""
        latest, reason = now, ""
        if self.quota.concurrency is not None and self.inside >= self.quota.concurrency:
            latest, reason = NEVER, f"{self.inside} requests at a time"
        for name, price in (("requests", 1.0), ("prompt_tokens", float(prompt))):
            bucket: Bucket | None = getattr(self, name)
            if bucket is not None and (when := bucket.when(price, now)) > latest:
                latest, reason = when, f"{bucket.rate:g} {_words(name)} a second, {bucket.burst:g} at once"
        output = self.output_tokens
        if output is not None and output.refill(now) <= 0.0:
            when = now + (EPSILON - output.level) / output.rate
            if when > latest:
                latest, reason = when, f"{output.rate:g} output tokens a second, {output.burst:g} at once"
        return latest, reason

    def promise(self, prompt: int) -> None:
        """A request is let into the queue."""
        self._promised(prompt, 1)

    def withdraw(self, prompt: int) -> None:
        """It leaves the queue without having started."""
        self._promised(prompt, -1)

    def pay(self, prompt: int, now: float) -> None:
        """It starts."""
        self._promised(prompt, -1)
        self.inside += 1
        for bucket, price in ((self.requests, 1.0), (self.prompt_tokens, float(prompt))):
            if bucket is not None:
                bucket.refill(now)
                bucket.level -= price

    def _promised(self, prompt: int, sign: int) -> None:
        self.inside += sign
        for bucket, price in ((self.requests, 1.0), (self.prompt_tokens, float(prompt))):
            if bucket is not None:
                # What a smaller burst could not hold was promised as the whole bucket.
                bucket.promised = max(bucket.promised + sign * min(price, bucket.burst), 0.0)

    def generated(self, tokens: int, now: float) -> None:
        if self.output_tokens is not None:
            self.output_tokens.refill(now)
            self.output_tokens.level -= tokens


def _words(name: str) -> str:
    return name.replace("_", " ")
