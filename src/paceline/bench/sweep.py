"""The knee: the last rate at which enough requests meet their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.workload.run import Run

FULL = 0.85
"""A run that finishes less than this share of what arrives is past saturation: doubling ends there."""


@dataclass
class Sweep:
    """Doubles the rate until it breaks, then halves the interval; or runs the rates that are given."""

    at_rate: Callable[[float], Run]
    share: float = 0.99
    start: float = 1.0
    halvings: int = 3
    most: float = 1000.0
    runs: list[Run] = field(default_factory=list)

    def search(self, say: Callable[[str], None]) -> None:
        """Fills `runs`."""
        rate, good, bad = self.start, 0.0, 0.0
        while not bad and rate <= self.most:
            if self._try(rate, say):
                good, rate = rate, rate * 2
            else:
                bad = rate
        while bad and not good and rate > self.start / 64:
            rate /= 2
            if self._try(rate, say):
                good = rate
            else:
                bad = rate
        for _ in range(self.halvings if good and bad else 0):
            rate = (good + bad) / 2
            if self._try(rate, say):
                good = rate
            else:
                bad = rate

    def these(self, rates: Sequence[float], say: Callable[[str], None]) -> None:
        """Run each of the rates."""
        for rate in sorted(rates):
            self._try(rate, say)

    def tidy(self) -> None:
        """Order by rate; a run past the knee is overloaded on purpose, and need not say so."""
        self.runs.sort(key=lambda run: run.rate)
        for run in self.runs:
            if not self.holds(run):
                run.findings = [finding for finding in run.findings if finding.level != "warning"]

    @property
    def knee(self) -> float | None:
        """Requests per second; None: no rate met the targets."""
        knee = None
        for run in sorted(self.runs, key=lambda run: run.rate):
            if not self.holds(run):
                break
            knee = run.rate
        return knee

    @property
    def ceiling(self) -> float | None:
        """The lowest rate that broke; None: none did."""
        return min((run.rate for run in self.runs if not self.holds(run)), default=None)

    def holds(self, run: Run) -> bool:
        """Enough requests met the targets, and the queue did not grow."""
        good = run.summary.steady.goodput
        return good is not None and good.share >= self.share and run.summary.stability.label != "overloaded"

    def verdict(self) -> str:
        """In a sentence."""
        targets = next((run.summary.steady.goodput for run in self.runs if run.summary.steady.goodput), None)
        limits = ", ".join(
            f"{name.upper()} {limit * 1e3:g} ms" for name, limit in (targets.targets if targets else {}).items()
        )
        knee, ceiling = self.knee, self.ceiling
        most = max((run.summary.steady.request_rate for run in self.runs), default=0.0)
        if knee is None:
            return f"No rate from {min(run.rate for run in self.runs):.3g}/s on keeps {self.share:.0%} within {limits}."
        above = f"; it breaks at {ceiling:.3g}/s" if ceiling is not None else "; no rate broke it, the knee is higher"
        return (
            f"Knee: {knee:.3g} requests/s keep {self.share:.0%} within {limits}{above}. "
            f"The most that was done: {most:.3g} requests/s."
        )

    def _try(self, rate: float, say: Callable[[str], None]) -> bool:
        run = self.at_rate(rate)
        run.rate = rate
        self.runs.append(run)
        good, steady = run.summary.steady.goodput, run.summary.steady
        share = good.share if good else 0.0
        held = self.holds(run)
        label = f"{run.summary.stability.label:10}  {'holds' if held else 'breaks'}"
        say(
            f"{rate:8.3g}/s  {share:6.1%} good  TTFT p99 {steady.ttft.at(99.0) * 1e3:8.0f} ms  "
            f"TPOT p99 {steady.tpot.at(99.0) * 1e3:6.1f} ms  {label}"
        )
        return held
