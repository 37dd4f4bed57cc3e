"""What the scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.request import FinishReason


@dataclass
class Counters:
    """Totals since the start. Tokens taken from the cache by a resumed sequence are not counted as hits."""

    steps: int = 0
    scheduled_tokens: int = 0
    prompt_tokens: int = 0  # of sequences admitted for the first time, cached ones included
    generation_tokens: int = 0
    prefix_query_tokens: int = 0  # prompt tokens looked up at the first admission
    prefix_hit_tokens: int = 0  # of these, taken from the cache
    preemptions: int = 0
    recomputed_tokens: int = 0  # tokens prefilled again after preemptions, as their K/V were lost
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    demoted_blocks: int = 0  # evicted contents copied to the host
    promoted_blocks: int = 0  # contents of a prefix copied back from the host
    disk_written_blocks: int = 0
    disk_read_blocks: int = 0
    disk_lost_blocks: int = 0  # that disk did not give back as they were written, or did not take
    displaced: int = 0  # preemptions for a waiting sequence of better priority
    resumed_hit_tokens: int = 0  # tokens a resumed sequence found in the cache
    finished: int = 0  # ended by themselves: all tokens, a stop token or string
    aborted: int = 0
    expired: int = 0
    failed: int = 0
    refused: int = 0  # requests not let in, for whatever reason

    def ended(self, reason: FinishReason) -> None:
        """A sequence has."""
        if reason is FinishReason.ABORT:
            self.aborted += 1
        elif reason is FinishReason.EXPIRED:
            self.expired += 1
        elif reason is FinishReason.ERROR:
            self.failed += 1
        else:
            self.finished += 1


@dataclass(frozen=True)
class SchedulerStats:
    """One look at the scheduler: what is where now, and the totals."""

    running: int
    waiting: int
    blocks_total: int
    blocks_held: int  # referred to by a sequence
    blocks_cached: int  # contents known, referred to by nobody
    blocks_free: int
    host_total: int
    host_swapped: int  # of swapped sequences
    host_cached: int  # evicted contents
    disk_total: int
    disk_cached: int
    totals: Counters
