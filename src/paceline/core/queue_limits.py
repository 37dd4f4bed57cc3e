"""How long the queue may get: refusals at the door that any discipline can have beside its own."""

from __future__ import annotations

from dataclasses import dataclass, fields

from paceline.core.line import Line
from paceline.errors import ConfigError, RequestError, flag_of

LONGEST_RETRY = 600.0  # seconds; what a client is told at most
UNKNOWN_RETRY = 1.0  # seconds; what a client is told when nothing was measured yet


def refusal(reason: str, code: str, seconds: float | None) -> RequestError:
    """A 429 that says when to try again."""
    retry = UNKNOWN_RETRY if seconds is None else min(max(seconds, 0.0), LONGEST_RETRY)
    return RequestError(f"{reason}; try again in {retry:.1f} s", code=code, status=429, retry_after=retry)


@dataclass(frozen=True)
class QueueLimits:
    """Most that may wait to be started for the first time; 0: no limit. `max_queue_wait` is in seconds, predicted.

    A prompt larger than the token limit is let in when nobody waits. A request over its tenant's quota counts for its
    tenant only. The wait is the queue's length over the rate at which it was served of late, so it holds for orders
    that serve who came first.
    """

    max_queued_requests: int = 0
    max_queued_tokens: int = 0
    max_queue_wait: float = 0.0
    max_queued_requests_per_tenant: int = 0
    max_queued_tokens_per_tenant: int = 0
    max_queue_wait_per_tenant: float = 0.0

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            wait = "wait" in spec.name
            if isinstance(value, bool) or not isinstance(value, (int, float) if wait else int) or not 0 <= value < 1e12:
                kind = "a number of seconds" if wait else "a whole number"
                raise ConfigError(flag_of(spec.name), value, f"{kind} of at least 0; 0 means no limit")

    @property
    def any(self) -> bool:
        return any(getattr(self, spec.name) for spec in fields(self))

    @property
    def per_tenant(self) -> bool:
        return bool(
            self.max_queued_requests_per_tenant or self.max_queued_tokens_per_tenant or self.max_queue_wait_per_tenant
        )

    def refuse(self, line: Line, prompt: int, now: float) -> RequestError | None:
        """Why a prompt of so many tokens may not join the queue of everybody; None: it may."""
        limits = (self.max_queued_requests, self.max_queued_tokens, self.max_queue_wait)
        return _refuse(line, prompt, now, limits, "", "the queue")

    def refuse_tenant(self, line: Line, tenant: str, prompt: int, now: float) -> RequestError | None:
        """Why it may not join the queue of its tenant."""
        limits = (
            self.max_queued_requests_per_tenant,
            self.max_queued_tokens_per_tenant,
            self.max_queue_wait_per_tenant,
        )
        return _refuse(line, prompt, now, limits, "tenant_", f"the queue of tenant {tenant!r}")


def _refuse(
    line: Line, prompt: int, now: float, limits: tuple[int, int, float], prefix: str, what: str
) -> RequestError | None:
    requests, tokens, wait = limits
    if requests and line.requests >= requests:
        seconds = line.seconds_for(now, line.requests - requests + 1, 0)
        return refusal(f"{what} is full: {line.requests} requests wait, {requests} may", prefix + "queue_full", seconds)
    if tokens and line.requests and line.tokens + prompt > tokens:
        seconds = line.seconds_for(now, 0, line.tokens + prompt - tokens)
        reason = f"{what} is full: {line.tokens} prompt tokens wait, {prompt} more would come, {tokens} may"
        return refusal(reason, prefix + "queue_full_of_tokens", seconds)
    if wait and (expected := line.wait(now)) is not None and expected > wait:
        reason = f"{what} is too long: it would wait about {expected:.1f} s, {wait:g} s is the most"
        return refusal(reason, prefix + "queue_too_slow", expected - wait)
    return None
