"""When the rows of a replica get their tokens, told to the log in as few words as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.core.request import RowArray
from paceline.core.steady import Started
from paceline.sim.latency import FloatArray
from paceline.sim.log import RunLog


class TokenTimes:
    """While every row that decodes gets its tokens at the same times (`even`), a step is one gap of so many rows, and
    the log is told a row's latest token only when it leaves or when this ends."""

    def __init__(self, log: RunLog, rows: int) -> None:
        self.log = log
        self.requests: RowArray = np.zeros(rows, np.intp)  # row -> index of its request in the log
        self.even = False

    def many(self, rows: RowArray, first: float, seconds: FloatArray) -> None:
        """These rows, which decode, got a token at `first` and at the end of each later step of so many seconds."""
        if self.even:
            self.log.add_gaps(seconds, rows.size)
        else:
            self._add_gaps(rows, first)
            self.log.add_gaps(seconds[1:], rows.size)
        self.even = True

    def one(self, rows: RowArray, started: Sequence[Started], seconds: float, now: float) -> None:
        """These rows, which decode, got a token at `now`, `seconds` after the last if all had it together, and so did
        some of those that started."""
        log = self.log
        if self.even:
            log.add_gap(seconds, rows.size)
        else:
            self._add_gaps(rows, now)
        for one in started:
            if one.samples:
                self._first(int(self.requests[one.row]), now)
        self.even = all(one.samples for one in started)
        if not self.even:
            log.last[self.requests[rows]] = now

    def any(self, rows: RowArray, now: float) -> None:
        """These rows got a token at `now`, some of them perhaps their first."""
        log, indexes = self.log, self.requests[rows]
        previous = log.last[indexes]
        log.add_gaps(now - previous)
        log.last[indexes] = now
        fresh = np.isnan(previous)
        if fresh.any():
            log.first[indexes[fresh]] = now

    def write(self, rows: RowArray, latest: float) -> None:
        """Let the log say when these rows, which decode, got their latest token."""
        if self.even:
            self.even = False
            self.log.last[self.requests[rows]] = latest

    def _first(self, index: int, now: float) -> None:
        """A request that has just started, perhaps again, gets a token."""
        log = self.log
        if math.isnan(log.last[index]):
            log.first[index] = now
        else:
            log.add_gap(now - float(log.last[index]), 1)
        log.last[index] = now

    def _add_gaps(self, rows: RowArray, now: float) -> None:
        self.log.add_gaps(now - self.log.last[self.requests[rows]])
