"""A step while it is being put together."""

from __future__ import annotations

import numpy as np

from paceline.core.batch import Batch
from paceline.core.plan import Entered, StepPlan
from paceline.core.request import IntArray, RowArray, Sequence
from paceline.kv.tiers import Moves

# Which prompts may be cut to the tokens left in a step (`Step.cut`), where chunked prefill is on at all.
ANY = "any"
FIRST = "first"  # only one that is longer than a whole step's budget, and nothing was scheduled before it
ONE = "one"  # any, at a block's edge where that is possible; nobody is started behind it


class Step:
    """What has been decided so far. Rows come first in bulk (`rows`, `counts`), then one by one."""

    def __init__(self, number: int, now: float, budget: int, chunk_limit: int) -> None:
        self.number = number
        self.now = now  # seconds on the caller's clock
        self.budget = budget  # tokens still to give
        self.chunk_limit = chunk_limit  # most tokens one row may get; 0: no limit
        self.rows: list[int] | RowArray = []
        self.counts: list[int] | IntArray = []
        self.entered: list[Entered] = []
        self.copies: list[tuple[int, int]] = []
        self.new: list[Sequence] = []
        self.resumed: list[Sequence] = []
        self.cached: dict[str, int] = {}  # sequence id -> tokens taken from the cache on admission
        self.preempted: list[tuple[Sequence, str]] = []
        self.displaced = 0  # of these, for a waiting sequence of better priority
        self.wake: float | None = None  # when an empty step's decision changes although nothing happens
        self.swap_out: list[tuple[int, int]] = []  # device block, host block
        self.swap_in: list[tuple[int, int]] = []  # host block, device block
        self.swapped_in: dict[str, int] = {}  # sequence id -> blocks
        self.promoted: dict[str, int] = {}  # sequence id -> blocks of its cached prefix that come from the host
        self.found: dict[str, int] = {}  # of those: whole blocks that were still on the device
        self.swapped_out: dict[str, int] = {}  # sequence id -> blocks
        self.kept: dict[str, int] = {}  # sequence id -> tokens a resumed sequence had kept by hold or swap
        self.whole_kv = False  # a sequence admitted gets the blocks of all its known tokens, not just of this step's
        self.cut = ANY  # which prompts may be cut to the tokens that are left
        self.sizes: tuple[int, ...] = ()  # prompts that start together lie between the same two of these lengths
        self.bucket: int | None = None  # between which, once one has started
        self.part = ""  # under ONE: the sequence whose prompt is cut
        self.closed = ""  # why the composition let nobody start, where it did not try
        self.blocked: tuple[Sequence | None, str] = (None, "")  # the first that could not be admitted, and why
        self.tried: dict[str, str] = {}  # sequence id -> why it could not, of those behind it that were tried too

    def put_bulk(self, rows: RowArray, counts: IntArray, total: int) -> None:
        """Schedule many rows at once, after those scheduled before."""
        if len(self.rows):
            self._as_lists()
            rows, counts = [*self.rows, *rows.tolist()], [*self.counts, *counts.tolist()]  # type: ignore[assignment]
        self.rows, self.counts = rows, counts
        self.budget -= total

    def put(self, row: int, count: int) -> None:
        self._as_lists()
        self.rows.append(row)  # type: ignore[union-attr]
        self.counts.append(count)  # type: ignore[union-attr]
        self.budget -= count

    def put_more(self, row: int, count: int) -> None:
        """More tokens for a row that is scheduled."""
        self._as_lists()
        self.counts[self.rows.index(row)] += count  # type: ignore[union-attr]
        self.budget -= count

    def put_last(self, count: int) -> None:
        """Move the first `count` rows behind the others."""
        if 0 < count < len(self.rows):
            self._as_lists()
            self.rows = [*self.rows[count:], *self.rows[:count]]
            self.counts = [*self.counts[count:], *self.counts[:count]]

    def take_out(self, row: int) -> int:
        """Unschedule a row and return the tokens it had been given (0: it was not scheduled)."""
        self._as_lists()
        assert isinstance(self.rows, list) and isinstance(self.counts, list)
        if row not in self.rows:
            return 0
        index = self.rows.index(row)
        del self.rows[index]
        count = self.counts.pop(index)
        self.budget += count
        return count

    def plan(self, batch: Batch, moves: Moves) -> StepPlan | None:
        """None when nothing is scheduled and nothing moves. `batch.computed` already counts this step's tokens."""
        rows = np.asarray(self.rows, np.intp)
        if not rows.size and not self.swap_out and not moves:
            return None
        counts = np.asarray(self.counts, np.int32)
        ends = batch.computed[rows]
        return StepPlan(
            step=self.number,
            rows=rows.astype(np.int32),
            starts=ends - counts,
            counts=counts,
            samples=ends == batch.length[rows],
            tokens=batch.tokens,
            block_table=batch.block_table,
            prompt_lengths=batch.prompt_length,
            entered=self.entered,
            copies=np.array(self.copies, np.int32).reshape(-1, 2),
            swap_out=np.array([*self.swap_out, *moves.out], np.int32).reshape(-1, 2),
            swap_in=np.array(self.swap_in, np.int32).reshape(-1, 2),
            drop_disk=moves.drop,
            to_disk=moves.to_disk,
            from_disk=moves.from_disk,
        )

    def _as_lists(self) -> None:
        if not isinstance(self.rows, list):
            self.rows = self.rows.tolist()
            self.counts = np.asarray(self.counts).tolist()
