"""A look at a scheduler from outside: numbers for metrics, and the proof that its accounts balance."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.core.request import SequenceState
from paceline.core.stats import SchedulerStats

if TYPE_CHECKING:
    from paceline.core.scheduler import Scheduler


def look(scheduler: Scheduler) -> SchedulerStats:
    """What is where now, and the totals."""
    kv, config, builder = scheduler.kv, scheduler.config, scheduler.builder
    return SchedulerStats(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        blocks_total=config.num_blocks,
        blocks_held=config.num_blocks - kv.available,
        blocks_cached=kv.available - kv.free,
        blocks_free=kv.free,
        host_total=config.num_host_blocks,
        host_swapped=sum(len(kept.swapped) for kept in builder.keeper.sequences.values()),
        host_cached=len(builder.tiers.cached),
        disk_total=config.num_disk_blocks,
        disk_cached=len(builder.tiers.disk),
        totals=replace(scheduler.totals),
    )


def prove(scheduler: Scheduler) -> None:
    """Every block and every row has one owner. AssertionError says what differs."""
    batch, keeper = scheduler.batch, scheduler.builder.keeper
    rows = batch.order.tolist()
    keeper.check()
    held = [(kept.lease, kept.kept_blocks) for kept in keeper.sequences.values() if kept.kept_blocks is not None]
    scheduler.kv.check(
        [(lease, blocks.tolist()) for lease, blocks in held]
        + [(batch.leases[row], batch.blocks(row).tolist()) for row in rows]
    )
    for row in rows:
        sequence = batch.occupant[row]
        assert sequence.row == row and sequence.state is SequenceState.RUNNING, f"row {row} and {sequence} differ"
        needs, most = (-(-tokens // batch.block_size) for tokens in (batch.computed[row], batch.length[row]))
        assert needs <= batch.held[row] <= max(needs, most), f"row {row} holds wrong blocks"
    scheduler.entrance.check_accounts()
    running = sum(sequence.state is SequenceState.RUNNING for sequence in scheduler.live())
    assert running == len(rows), f"{running} sequences say they run, {len(rows)} rows are occupied"
