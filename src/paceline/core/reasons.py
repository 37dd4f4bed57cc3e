"""Why sequences wait, put into words when somebody asks."""

from __future__ import annotations

from collections.abc import Container, Iterable

from paceline.core.request import Sequence, SequenceState
from paceline.core.step import Step


def reasons_to_wait(
    waiting: Iterable[Sequence], step: Step | None, undone: Container[str], submitted: int
) -> dict[str, str]:
    """For each in the queue, why it was not started in `step`, the last one decided (None: there was none).

    `undone`: those whose step was not executed; `submitted`: how many sequences had come when the step was decided.
    """
    blocked, reason = step.blocked if step is not None else (None, "")
    preempted = {sequence.id for sequence, _ in step.preempted} if step is not None else set()
    reasons: dict[str, str] = {}
    for sequence in waiting:
        if sequence.id in undone:
            reasons[sequence.id] = "failed: the step it was in could not be executed and is tried again"
        elif sequence.number >= submitted or step is None:
            reasons[sequence.id] = "new: arrived after the last step was scheduled"
        elif sequence.id in preempted:
            reasons[sequence.id] = "preempted: its KV blocks were needed by others"
        elif sequence is blocked:
            reasons[sequence.id] = reason
        elif sequence.id in step.tried:
            reasons[sequence.id] = step.tried[sequence.id]
        elif len(preempted) > step.displaced:
            reasons[sequence.id] = "KV: a running sequence had to be preempted in this step, so nobody starts"
        elif step.closed:
            reasons[sequence.id] = step.closed
        elif blocked is not None and blocked.state is not SequenceState.FINISHED:
            reasons[sequence.id] = f"behind {blocked.id} ({reason})"
        else:
            reasons[sequence.id] = "order: others went first in the last step"
    return reasons
