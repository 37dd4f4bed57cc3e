"""Whether a machine was quiet while something was measured on it, and measuring again where it was not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
MOST = 0.03
"""Share of the machine above which somebody else's work disturbs a measurement."""
STOLEN = 0.02  # ... and above which the host's work for others does
TELLING = 1.0  # seconds below which the system's clock ticks are too coarse to tell
LOOK = 2.0  # seconds over which it is seen whether others have ended


@dataclass(frozen=True)
class Quiet:
    """What the machine did for others, as shares of all its cores."""

    others: float
    """Work of processes that are not ours; NaN where the system does not tell."""
    stolen: float
    """Time that the host of a virtual machine gave to somebody else."""
    seconds: float = TELLING
    """That this is about."""

    @property
    def disturbed(self) -> bool:
        return self.seconds >= TELLING and (self.others > MOST or self.stolen > STOLEN)

    def __str__(self) -> str:
        if self.others != self.others:
            return "this system does not tell what else ran"
        return f"others used {self.others:.1%} of the machine" + (f", {self.stolen:.1%} stolen" if self.stolen else "")


class Bystanders:
    """From its making to `seen`: how much of the machine this process and its children did not use, and others did."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._stolen = _machine()
        self._ours = _ours(os.getpid())

    def seen(self) -> Quiet:
        """Since it was made. Children that ended meanwhile count as ours if they were waited for."""
        busy, stolen = _machine()
        seconds = time.monotonic() - self._began
        ticks = max(seconds, 1e-9) * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
        others = (busy - self._busy) - (_ours(os.getpid()) - self._ours)
        return Quiet(max(others / ticks, 0.0), (stolen - self._stolen) / ticks, seconds)


class Patience:
    """Decides whether something is measured again: where others disturbed it, once they have ended, and not forever.

    Attributes:
        repeated: measurements that are done again.
        kept: disturbed ones that are not, since tries or patience are used up.
    """

    def __init__(self, tries: int, seconds: float, progress: Callable[[str], None] = lambda _: None) -> None:
        """So many tries, and so many seconds of waiting for others, over all that is asked about."""
        self._tries, self._seconds, self._progress = tries, seconds, progress
        self.repeated = self.kept = 0

    def again(self, quiet: Quiet) -> bool:
        """Is what was measured meanwhile to be measured once more? If so: now."""
        if not quiet.disturbed:
            return False
        if self._tries <= 0 or self._seconds <= 0:
            self.kept += 1
            return False
        self._tries -= 1
        self.repeated += 1
        self._progress(f"{quiet}: once more")
        self._wait()
        return True

    def _wait(self) -> None:
        while self._seconds > 0:
            bystanders = Bystanders()
            time.sleep(LOOK)
            self._seconds -= LOOK
            if not bystanders.seen().disturbed:
                return


def _machine() -> tuple[float, float]:
    """(ticks of work, ticks stolen) since the machine started."""
    try:
        columns = [float(value) for value in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return float("nan"), 0.0
    return sum(columns[:3]) + sum(columns[5:7]), columns[7] if len(columns) > 7 else 0.0


def _ours(root: int) -> float:
    """Ticks of a process, of those it came to be the parent of, and of theirs."""
    parents: dict[int, int] = {}
    ticks: dict[int, float] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = sum(float(value) for value in fields[11:15])
    total = 0.0
    for process in ticks:
        above = process
        while above not in (root, 0):
            above = parents.get(above, 0)
        total += ticks[process] if above == root else 0.0
    return total
