"""Who yields its blocks when a running sequence cannot grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


@dataclass(frozen=True)
class Newest:
    """The one admitted last. After vLLM (fcfs)."""

    yields_turn: bool = False
    how: str = "recompute"
    front: bool = True

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        return int(builder.batch.order[-1])


@dataclass(frozen=True)
class MostKV:
    """The longest, which has or will have most KV, of equals the one admitted last: as few as possible have to go.

    By known tokens, not by blocks held: those change as prompts come in parts, and two could evict each other for ever.
    """

    yields_turn: bool = True
    how: str = "recompute"
    front: bool = True

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        rows = builder.batch.order[::-1]
        return int(rows[np.argmax(builder.batch.length[rows])])


@dataclass(frozen=True)
class LatestArrival:
    """The one that arrived last, whenever it was admitted. After vLLM V0 and Sarathi-Serve, which decode by arrival."""

    yields_turn: bool = False
    how: str = "recompute"
    front: bool = True

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        rows = builder.batch.order
        return int(rows[np.argmax(builder.batch.number[rows])])


@dataclass(frozen=True)
class ShortestOutput:
    """The one that has generated least, of these the one with the longest prompt, of these the newest. After SGLang.

    Unfinished prompts come last: a prompt yields only when at most one decode is left.
    """

    yields_turn: bool = True
    how: str = "recompute"
    front: bool = False

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        batch = builder.batch
        rows = batch.order
        generated = batch.length[rows] - batch.prompt_length[rows]
        prompts = (batch.length[rows] - batch.computed[rows] > 1) | (generated == 0)
        decodes = np.flatnonzero(~prompts)
        among = decodes if decodes.size > 1 or not prompts.any() else np.flatnonzero(prompts)
        ranked = np.lexsort((-among, -batch.prompt_length[rows[among]], generated[among]))
        return int(rows[among[ranked[0]]])


@dataclass(frozen=True)
class LowestPriority:
    """The worst of (priority, arrival, order of submission), wherever it stands. After vLLM (priority).

    There equals in the first two, as the sequences of one request are, can evict each other for ever; here the one
    submitted last yields.
    """

    yields_turn: bool = True
    how: str = "recompute"
    front: bool = True

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        occupants = builder.batch.occupant[builder.batch.order]
        return int(max(occupants, key=lambda sequence: (sequence.priority, sequence.arrival, sequence.number)).row)


@dataclass(frozen=True)
class LeastLost:
    """Among the worst priority, the one whose return costs least: fewest tokens to compute again.

    Never one admitted before `row` unless its priority is worse, so the oldest always makes progress.
    """

    yields_turn: bool = True
    how: str = "recompute"
    front: bool = True

    def victim(self, builder: StepBuilder, row: int) -> int | None:
        batch = builder.batch
        position = int(np.flatnonzero(batch.order == row)[0])
        mine = batch.occupant[row].priority
        best: tuple[int, int, int] | None = None
        choice = row
        for index, candidate in enumerate(batch.order.tolist()):
            priority = batch.occupant[candidate].priority
            if priority < mine or (priority == mine and index < position):
                continue
            cost = (-priority, int(batch.computed[candidate]), -index)
            if best is None or cost < best:
                best, choice = cost, candidate
        return choice
