"""Closed batches that wait, for a bounded time, until they are worth running."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from paceline.core.compositions.closed_batch import close, run_batch
from paceline.core.config import SchedulerConfig
from paceline.core.level_queues import LevelQueues
from paceline.core.orders.levels import Levels
from paceline.core.request import Sequence
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.discipline import Discipline
    from paceline.core.step import Step
    from paceline.core.step_builder import StepBuilder

NANOSECOND = 1e-9  # times nearer than this are equal: seconds are sums of binary fractions


@dataclass(frozen=True)
class DynamicBatch:
    """When the model is idle, wait up to `max_queue_delay_microseconds` for a batch of a preferred size.

    After Triton's dynamic batcher: the largest preferred size reached is dispatched at once, everything there is when
    its oldest has waited long enough, when it exceeds the largest preferred size, or when there is no delay. Without
    preferred sizes the largest batch is the preferred one. Too late requests (`LevelQueues`) are noticed when the
    walk along the queue meets them, so a timeout is no hard deadline. Answers leave in the order of the batch.
    """

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0

    def __post_init__(self) -> None:
        for size in self.preferred_batch_size:
            if type(size) is not int or size < 1:
                raise ConfigError("preferred_batch_size", size, "a whole number of at least 1")
        if self.max_queue_delay_microseconds < 0:
            raise ConfigError("max_queue_delay_microseconds", self.max_queue_delay_microseconds, "at least 0")

    def check(self, config: SchedulerConfig, row: Discipline) -> None:
        for size in self.preferred_batch_size:
            if size > config.max_num_seqs:
                raise ConfigError(
                    "preferred_batch_size", size, f"at most --max-num-seqs ({config.max_num_seqs}), the largest batch"
                )

    def compose(self, builder: StepBuilder, step: Step) -> None:
        if run_batch(builder, step):
            return
        count = self._count(builder, step)
        for _ in range(count):
            sequence = builder.waiting.first()
            assert sequence is not None
            if (reason := builder.try_admit(step, sequence)) is not None:
                step.blocked = (sequence, reason)
                return
        if count:
            close(step, count)

    def _count(self, builder: StepBuilder, step: Step) -> int:
        """How many of the queue to dispatch now; 0 with `step.wake` set when it is to wait."""
        largest = builder.config.max_num_seqs
        preferred = self.preferred_batch_size or (largest,)
        pending, more = self._pending(builder, step, largest)
        best = max((size for size in preferred if size <= len(pending)), default=0)
        if not pending:
            return 0
        delay = self.max_queue_delay_microseconds * 1e-6
        oldest = min(sequence.submitted for sequence in pending)
        late = delay > 0 and step.now - oldest >= delay - NANOSECOND
        if best and not late:
            return best
        if more or late or delay == 0 or len(pending) >= max(preferred):
            return len(pending)
        step.wake = min([oldest + delay, *self._expiries(builder, step, pending)])
        step.closed = (
            f"batch: {len(pending)} wait for {min(preferred)} to run together, until {oldest + delay:.6f} s at most"
        )
        return 0

    def _pending(self, builder: StepBuilder, step: Step, largest: int) -> tuple[list[Sequence], bool]:
        """The first `largest` in the queue that are not too late, and whether there are more of them."""
        pending: list[Sequence] = []
        while True:
            for sequence in islice(iter(builder.waiting), len(pending), None):
                if self._drop_late(builder, step, sequence):
                    break  # the queue has changed: look at the same place again
                if len(pending) == largest:
                    return pending, True
                pending.append(sequence)
            else:
                return pending, False

    @staticmethod
    def _drop_late(builder: StepBuilder, step: Step, sequence: Sequence) -> bool:
        """Expire or put back a sequence whose time has run out. True when it was."""
        queues, waiting = builder.discipline.overload, builder.waiting
        if not isinstance(queues, LevelQueues):
            return False
        expiry = queues.expiry(sequence)
        if expiry is None or step.now < expiry - NANOSECOND:
            return False
        if not queues.policy(sequence.priority).delays:
            builder.expire(sequence, f"timeout: waited {step.now - sequence.submitted:.6f} s in the queue")
            return True
        assert isinstance(waiting, Levels)  # `LevelQueues.check`
        if waiting.is_delayed(sequence):
            return False
        waiting.delay(sequence)
        return True

    @staticmethod
    def _expiries(builder: StepBuilder, step: Step, pending: list[Sequence]) -> list[float]:
        """When those pending run out of time."""
        queues = builder.discipline.overload
        if not isinstance(queues, LevelQueues):
            return []
        times = [queues.expiry(sequence) for sequence in pending]
        return [time for time in times if time is not None and time > step.now]
