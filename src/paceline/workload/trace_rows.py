"""What the rows of traces have in common: tokens that make sense, and times that rise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.workload.requests import TimedRequest, Workload, WorkloadError
from paceline.workload.trace_files import Faults, number

if TYPE_CHECKING:
    from paceline.workload.traces import ReadOptions

_ZERO = "rows with 0 tokens"


def has_tokens(faults: Faults, line: int, tokens_in: int, tokens_out: int) -> bool:
    if tokens_in >= 1 and tokens_out >= 1:
        return True
    detail = f"{tokens_in} tokens in and {tokens_out} out; both must be at least 1"
    faults.row(line, "negative tokens" if min(tokens_in, tokens_out) < 0 else _ZERO, detail)
    return False


def cut(tokens: int, options: ReadOptions) -> int:
    return tokens if options.max_output is None else min(tokens, options.max_output)


def stamps(timed: bool) -> str:
    return "trace timestamps" if timed else ""


class Clock:
    """Times of a trace: numbers or dates, ascending, from 0 on once they are relative to the first."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path, self._faults = path, faults
        self._last = float("-inf")

    def read(self, line: int, column: str, value: Any, unit: float) -> float | None:
        """Seconds; None: the row is left out."""
        at = self._seconds(line, column, value, unit)
        if at < 0:
            self._faults.row(line, "negative times", f"{column} {value} is negative")
            return None
        if at < self._last:
            self._faults.row(
                line,
                "times out of order",
                f"{column} {value} comes after a later time; the rows must be sorted by time",
            )
            return None
        self._last = at
        return at

    def _seconds(self, line: int, column: str, value: Any, unit: float) -> float:
        if isinstance(value, str) and ("-" in value[1:] and ":" in value):
            try:
                whole, _, fraction = value.strip().replace("T", " ").partition(".")
                digits = "".join(c for c in fraction if c.isdigit())
                moment = datetime.fromisoformat(whole[:19])
                return (moment - datetime(1970, 1, 1)).total_seconds() + (float("0." + digits) if digits else 0.0)
            except ValueError:
                raise WorkloadError(f"{self._path}, line {line}: {column} is {value!r}, not a date") from None
        return number(self._path, line, column, value) * unit

    @staticmethod
    def relative(requests: Sequence[TimedRequest]) -> Sequence[TimedRequest]:
        first = requests[0].arrival if requests else 0.0
        if first == 0.0:
            return requests
        workload = Workload(requests)
        return workload.with_times(workload.times() - first, "").requests
