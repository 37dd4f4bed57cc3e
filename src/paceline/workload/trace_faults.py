"""Rows of traces that make no sense: refused with file, line, column and value, or left out and counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from paceline.workload.requests import WorkloadError


class BadRow(Exception):
    """A row at fault: `reason` in the words in which such rows are counted, `detail` what is wrong in this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Faults:
    """What to do with rows at fault: refuse the file, or leave them out and count them."""

    def __init__(self, path: Path, skip: bool) -> None:
        self.path = path
        self.skip = skip
        self.counts: Counter[str] = Counter()

    def take(self, line: int, fault: BadRow, where: str = "line") -> None:
        """A row at fault. WorkloadError unless such rows are left out."""
        if not self.skip:
            raise WorkloadError(
                f"{self.path}, {where} {line}: {fault.detail}; mend the file, or leave such rows out with "
                "--bad-rows skip"
            )
        self.counts[fault.reason] += 1
