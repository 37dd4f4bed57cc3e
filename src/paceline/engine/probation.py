"""After engines have died again and again: which request does it?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

CRASHES = 2  # in the restart window, from which on requests are tried one at a time


class Probation:
    """Hands requests to a new engine one by one: the next goes when the one before has got a token, or has ended.

    So whoever is being tried when the engine dies is the culprit, and the others are served.
    """

    def __init__(self) -> None:
        self.trying: int | None = None  # number of the request
        self._held: OrderedDict[int, None] = OrderedDict()

    @property
    def on(self) -> bool:
        return self.trying is not None

    def begin(self, numbers: Iterable[int]) -> int | None:
        """Hold these back. Returns the first to try; None: there are none."""
        self._held = OrderedDict.fromkeys(numbers)
        return self._next()

    def hold(self, number: int) -> None:
        """A new request has to wait for its turn."""
        self._held[number] = None

    def passed(self, number: int) -> int | None:
        """A request has got a token, was refused, or is over. Returns the next to try, if it is time for one."""
        self._held.pop(number, None)
        return self._next() if number == self.trying else None

    def end(self) -> int | None:
        """The engine has died. Returns the culprit, if one was being tried."""
        culprit, self.trying = self.trying, None
        self._held.clear()
        return culprit

    def _next(self) -> int | None:
        self.trying = self._held.popitem(last=False)[0] if self._held else None
        return self.trying
