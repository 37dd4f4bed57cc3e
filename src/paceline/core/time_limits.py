"""How long a request may wait, and how long it may take: who is too late is found without looking at the others."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from paceline.core.request import Sequence, SequenceState

Entry = tuple[float, int, list[Sequence], str]  # when, a number that breaks ties, the request's sequences, the reason
NANOSECOND = 1e-9  # times nearer than this are equal: seconds are sums of binary fractions


class TimeLimits:
    """A heap of when requests are too late: O(expired + log n) a step, nothing at all for requests without limits."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._numbers = 0
        self._live = 0  # entries of requests that have not ended

    def add(self, sequences: list[Sequence], now: float) -> int:
        """A request has come through the door. Returns the number of limits it has, for `forget`."""
        request = sequences[0].request
        count = 0
        resumed = any(sequence.tokens.size > sequence.prompt_length for sequence in sequences)
        if request.queue_timeout is not None and not resumed:
            self._push(now + request.queue_timeout, sequences, "queue")
            count += 1
        if request.timeout is not None:
            self._push(now + request.timeout, sequences, "total")
            count += 1
        self._live += count
        return count

    def _push(self, when: float, sequences: list[Sequence], kind: str) -> None:
        self._numbers += 1
        heappush(self._heap, (when, self._numbers, sequences, kind))

    def forget(self, count: int) -> None:
        """A request with so many limits has ended."""
        self._live -= count
        if len(self._heap) > 4 * self._live + 64:
            self._heap = [entry for entry in self._heap if _alive(entry[2])]
            heapify(self._heap)

    def due(self, now: float) -> Iterator[tuple[list[Sequence], str]]:
        """The sequences of requests that are too late, and why in words."""
        heap = self._heap
        while heap and heap[0][0] <= now + NANOSECOND:
            _, _, sequences, kind = heappop(heap)
            if not _alive(sequences):
                continue
            request, waited = sequences[0].request, now - sequences[0].submitted
            if kind == "total":
                yield sequences, f"timeout: it may take {request.timeout:g} s and has taken {waited:.3f} s"
            elif all(sequence.first_scheduled is None for sequence in sequences):
                yield (
                    sequences,
                    f"queue_timeout: it may wait {request.queue_timeout:g} s and has waited {waited:.3f} s",
                )

    @property
    def next(self) -> float | None:
        """When somebody will be too late, or would be if still there."""
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        """Limits of requests that are here."""
        return self._live


def _alive(sequences: list[Sequence]) -> bool:
    return any(sequence.state is not SequenceState.FINISHED for sequence in sequences)
