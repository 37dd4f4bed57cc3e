"""Where a sequence's time went: a few numbers that change only when its state does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.core.request import Sequence

QUEUE = "queue"  # before it was first admitted
PREFILL = "prefill"  # in the batch, without a token of its own yet
DECODE = "decode"  # in the batch, after its first token; what has to be computed again after a preemption included
PREEMPTED = "preempted"  # off the batch after it had been in it
PHASES = (QUEUE, PREFILL, DECODE, PREEMPTED)


class Account:
    """Seconds by phase, and steps in the batch, of one sequence. O(1) per change of state, nothing in between.

    The seconds of all phases add up to the time from arrival at the scheduler to the end, on the clock of whoever
    drives it. `steps`: forward passes scheduled while it was in the batch.
    """

    __slots__ = ("_entered", "decode", "phase", "preempted", "prefill", "queue", "since", "steps")

    def __init__(self, now: float) -> None:
        self.phase = QUEUE
        self.since = now  # when the phase began
        self.queue = 0.0
        self.prefill = 0.0
        self.decode = 0.0
        self.preempted = 0.0
        self.steps = 0
        self._entered: int | None = None  # steps there had been when it entered the batch

    def enters(self, now: float, steps: int, generated: bool) -> None:
        """It takes a row of the batch, in step number `steps`; `generated`: it has had a token."""
        self._turn(DECODE if generated else PREFILL, now)
        self._entered = steps

    def first_token(self, now: float) -> None:
        self._turn(DECODE, now)

    def leaves(self, now: float, steps: int) -> None:
        """It gives up its row to wait again; `steps` have been scheduled."""
        self._turn(PREEMPTED, now)
        self._count(steps)

    def ends(self, now: float, steps: int) -> None:
        self._turn(self.phase, now)
        self._count(steps)

    def seconds(self, now: float | None = None) -> dict[str, float]:
        """By phase; with the phase it is in up to `now`, where that is given."""
        found: dict[str, float] = {phase: getattr(self, phase) for phase in PHASES}
        if now is not None:
            found[self.phase] += max(now - self.since, 0.0)
        return found

    def steps_so_far(self, steps: int) -> int:
        return self.steps + (0 if self._entered is None else max(steps - self._entered, 0))

    def _turn(self, phase: str, now: float) -> None:
        setattr(self, self.phase, getattr(self, self.phase) + max(now - self.since, 0.0))
        self.phase, self.since = phase, now

    def _count(self, steps: int) -> None:
        if self._entered is not None:
            self.steps += max(steps - self._entered, 0)
            self._entered = None


def report(sequence: Sequence, steps: int, now: float | None = None) -> dict[str, Any]:
    """A sequence's account as plain values. `steps` scheduled so far; `now` for one that has not ended."""
    account = sequence.account
    seconds = account.seconds(now)
    lines: dict[str, Any] = {
        "state": sequence.state.value,
        **{f"{phase}_seconds": round(value, 6) for phase, value in seconds.items()},
        "total_seconds": round(sum(seconds.values()), 6),
        "steps": account.steps_so_far(steps),
        "prompt_tokens": sequence.prompt_length,
        "cached_tokens": sequence.cached_tokens,
        "recomputed_tokens": sequence.recomputed_tokens,
        "preemptions": sequence.preemptions,
    }
    if sequence.finish_reason is not None:
        lines["finish_reason"] = sequence.finish_reason.value
        lines["generated_tokens"] = int(sequence.tokens.size) - sequence.prompt_length
    if sequence.finish_detail:
        lines["detail"] = sequence.finish_detail
    return lines
