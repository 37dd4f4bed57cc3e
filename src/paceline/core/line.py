"""A queue as its length and the rate at which it is served, measured."""

from __future__ import annotations

import math

MEMORY = 20.0  # seconds after which a measurement counts for 1/e of a new one


class Line:
    """How many requests and prompt tokens wait, and how fast they have been served while somebody waited.

    Rates count only time in which there was somebody to serve, so idling does not look like slowness. O(1) each.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self._served_requests = 0.0
        self._served_tokens = 0.0
        self._seconds = 0.0
        self._since = -math.inf

    def join(self, now: float, tokens: int) -> None:
        self._advance(now)
        self.requests += 1
        self.tokens += tokens

    def leave(self, now: float, tokens: int, served: bool) -> None:
        """`served`: it got what it waited for; otherwise it gave up."""
        self._advance(now)
        self.requests -= 1
        self.tokens -= tokens
        if served:
            self._served_requests += 1.0
            self._served_tokens += tokens

    def _advance(self, now: float) -> None:
        elapsed = now - self._since
        if self.requests and elapsed > 0.0:
            keep = math.exp(-elapsed / MEMORY)
            self._served_requests *= keep
            self._served_tokens *= keep
            self._seconds = self._seconds * keep + MEMORY * (1.0 - keep)
        self._since = max(self._since, now)

    def seconds_for(self, now: float, requests: float, tokens: float) -> float | None:
        """Seconds until so many more will have been served, at the rate of late; None when nothing was measured yet."""
        self._advance(now)
        if self._served_requests <= 0.0:
            return None
        seconds = max(requests, 0.0) * self._seconds / self._served_requests
        if self._served_tokens > 0.0:
            seconds = max(seconds, max(tokens, 0.0) * self._seconds / self._served_tokens)
        return seconds

    def wait(self, now: float) -> float | None:
        """Seconds that one who comes now will wait, served in order of arrival; None when nothing was measured yet."""
        return 0.0 if not self.requests else self.seconds_for(now, self.requests, self.tokens)
