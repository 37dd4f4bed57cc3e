"""What becomes of the K/V of preempted sequences that are not to be computed again: held in place, or swapped out."""

from __future__ import annotations

from collections import abc

from paceline.core.batch import Batch
from paceline.core.request import Sequence
from paceline.core.stats import Counters
from paceline.core.step import Step
from paceline.kv.host_pool import HostPool
from paceline.kv.interface import KVCache, Match

RECOMPUTE = "recompute"  # the blocks go back to the cache, where they may be found again until they are evicted
SWAP = "swap"  # they are copied to host blocks; recompute when there are not enough of these
HOLD = "hold"  # they stay the sequence's; it only gives up its row


class Keeper:
    """One per scheduler. Knows every preempted sequence that has K/V of its own to come back to."""

    def __init__(self, kv: KVCache, batch: Batch, host: HostPool, totals: Counters) -> None:
        self.kv = kv
        self.batch = batch
        self.host = host
        self.totals = totals
        self.sequences: dict[str, Sequence] = {}  # in the order they were preempted

    def keep(self, step: Step, sequence: Sequence, how: str) -> str:
        """Keep the K/V of a running sequence that is about to leave its row; what was done in the end.

        All of `batch.computed` must have been written by earlier steps. The caller frees the row, and unless the
        answer is HOLD the blocks.
        """
        row, size = sequence.row, self.batch.block_size
        tokens = int(self.batch.computed[row])
        blocks = self.batch.blocks(row)
        if tokens == 0 or how == RECOMPUTE:
            return RECOMPUTE
        if how == SWAP:
            count = -(-tokens // size)
            if count > self.host.available:
                return RECOMPUTE
            sequence.swapped = self.host.allocate(count)
            step.swap_out += zip(blocks[:count].tolist(), sequence.swapped, strict=True)
            step.swapped_out[sequence.id] = count
            self.totals.swapped_out_blocks += count
        elif how == HOLD:
            sequence.kept_blocks = blocks.copy()
        else:
            raise ValueError(f"a sequence cannot be preempted by {how!r}, only by recompute, swap or hold")
        sequence.kept_tokens = tokens
        self.sequences[sequence.id] = sequence
        return how

    def match(self, sequence: Sequence, cached: Match) -> Match:
        """What a kept sequence has, given what the cache has of it: held blocks, or cached ones beside host copies.

        `length` counts what need not be computed; `blocks` only what is on the device.
        """
        if sequence.kept_blocks is not None:
            return Match(sequence.kept_tokens, sequence.kept_blocks.tolist(), 0, -1, None)
        if cached.length >= sequence.kept_tokens:
            return cached
        return cached._replace(length=sequence.kept_tokens, tail_block=-1)

    def swap_in(self, step: Step, sequence: Sequence, match: Match, fresh: abc.Sequence[int]) -> bool:
        """Plan the copies from the host into the first of the `fresh` blocks. False: the device has everything."""
        missing = sequence.swapped[len(match.blocks) :]
        if not missing or match.tail_block >= 0:
            return False
        step.swap_in += zip(missing, fresh, strict=False)
        step.swapped_in[sequence.id] = len(missing)
        step.found[sequence.id] = len(match.blocks)
        self.totals.swapped_in_blocks += len(missing)
        return True

    def forget(self, sequence: Sequence) -> None:
        """The sequence is in the batch again, or has ended: host blocks are given back, held ones are its row's."""
        if self.sequences.pop(sequence.id, None) is None:
            return
        self.host.release(sequence.swapped)
        sequence.swapped = []
        sequence.kept_blocks = None
        sequence.kept_tokens = 0

    def drop(self, sequence: Sequence) -> None:
        """Keep nothing of it any more; it has to be computed again. Nothing happens to a sequence not kept."""
        if sequence.kept_blocks is not None:
            self.kv.release(sequence.lease, sequence.kept_blocks)
            sequence.lease = None
        self.forget(sequence)

    def drop_newest_held(self) -> bool:
        """Take the blocks of the sequence held last. False: nobody is held."""
        for sequence in reversed(self.sequences.values()):
            if sequence.kept_blocks is not None:
                self.drop(sequence)
                return True
        return False

    def check(self) -> None:
        """Prove the accounting of host blocks. Held device blocks are for the cache's own check."""
        self.host.check(sequence.swapped for sequence in self.sequences.values())
        for sequence in self.sequences.values():
            blocks = len(sequence.swapped) if sequence.kept_blocks is None else sequence.kept_blocks.size
            assert blocks * self.batch.block_size >= sequence.kept_tokens > 0, f"{sequence} keeps too few blocks"
            assert sequence.row < 0, f"{sequence} is kept and has a row"
