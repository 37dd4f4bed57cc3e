"""What the rows of traces have in common: numbers within reason, tokens that make sense, and times that rise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from paceline.workload.requests import TimedRequest, Workload
from paceline.workload.trace_faults import BadRow

if TYPE_CHECKING:
    from paceline.workload.traces import ReadOptions

MOST_TOKENS = 2**24  # of a prompt, or of an answer
MOST_SECONDS = 1e12  # since 1970, or since the trace began: a longer time has another unit
_MOST = 2**53  # of any other whole number


def number(column: str, value: Any) -> float:
    """A finite number; BadRow for anything else."""
    try:
        found = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = None
    except OverflowError:  # a whole number of hundreds of digits
        found = math.inf
    if found is None or not math.isfinite(found):
        kind = "number" if found is None else "finite number"
        raise BadRow("cells that are no numbers", f"{column} is {_shown(value)}, not a {kind}")
    return found


def count(column: str, value: Any, most: int = _MOST) -> int:
    """A whole number, `most` at most and not below -`most`; BadRow for anything else."""
    found = number(column, value)
    if abs(found) > most:
        raise BadRow("numbers beyond reason", f"{column} is {_shown(value)}; {most:,} is the most there may be")
    if found != int(found):
        raise BadRow("cells that are no whole numbers", f"{column} is {_shown(value)}, not a whole number")
    return int(found)


def need_tokens(tokens_in: int, tokens_out: int) -> None:
    """BadRow unless there is a token on both sides."""
    if min(tokens_in, tokens_out) < 1:
        reason = "negative tokens" if min(tokens_in, tokens_out) < 0 else "rows with 0 tokens"
        raise BadRow(reason, f"{tokens_in} tokens in and {tokens_out} out; both must be at least 1")


def cut(tokens: int, options: ReadOptions) -> int:
    return tokens if options.max_output is None else min(tokens, options.max_output)


def stamps(timed: bool) -> str:
    return "trace timestamps" if timed else ""


class Clock:
    """Times of a trace: numbers or dates, ascending, from 0 on once they are relative to the first."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def read(self, column: str, value: Any, unit: float) -> float:
        """Seconds. BadRow for what is no time, or comes before its predecessor. Read it last: it moves the clock."""
        at = _seconds(column, value, unit)
        if at < 0:
            raise BadRow("negative times", f"{column} {_shown(value, str)} is negative")
        if at > MOST_SECONDS:
            detail = f"{column} is {_shown(value)}; {MOST_SECONDS / unit:,.0f} is the most there may be"
            raise BadRow("times beyond reason", detail)
        if at < self._last:
            detail = f"{column} {_shown(value, str)} comes after a later time; the rows must be sorted by time"
            raise BadRow("times out of order", detail)
        self._last = at
        return at

    @staticmethod
    def relative(requests: Sequence[TimedRequest]) -> Sequence[TimedRequest]:
        first = requests[0].arrival if requests else 0.0
        if first == 0.0:
            return requests
        workload = Workload(requests)
        return workload.with_times(workload.times() - first, "").requests


def _seconds(column: str, value: Any, unit: float) -> float:
    if isinstance(value, str) and ("-" in value[1:] and ":" in value):
        try:
            whole, _, fraction = value.strip().replace("T", " ").partition(".")
            digits = "".join(c for c in fraction if c.isdigit())
            moment = datetime.fromisoformat(whole[:19])
            return (moment - datetime(1970, 1, 1)).total_seconds() + (float("0." + digits) if digits else 0.0)
        except ValueError:
            raise BadRow("cells that are no dates", f"{column} is {_shown(value)}, not a date") from None
    return number(column, value) * unit


def _shown(value: Any, how: Callable[[Any], str] = repr) -> str:
    """Enough of it to find it."""
    try:
        text = how(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
