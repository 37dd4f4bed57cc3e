"""When engine processes died, and how many deaths are too many."""

from __future__ import annotations

from collections import deque


class Crashes:
    """Counts crashes within a window of time.

    Attributes:
        total: crashes since the start.
    """

    def __init__(self, most: int, window: float) -> None:
        """At most `most` crashes within `window` seconds are survived."""
        self.most = most
        self.window = window
        self.total = 0
        self._times: deque[float] = deque()

    def __len__(self) -> int:
        """Crashes within the window that ended with the last one."""
        return len(self._times)

    def note(self, now: float) -> None:
        """A process died, at this time in seconds."""
        self.total += 1
        self._times.append(now)
        while now - self._times[0] > self.window:
            self._times.popleft()

    @property
    def too_many(self) -> bool:
        return len(self._times) > self.most


def how_it_ended(status: int) -> str:
    """An exit status as people say it; negative ones are signals."""
    return f"signal {-status}" if status < 0 else f"status {status}"
