"""Small worlds for tests that write their situations out."""

from __future__ import annotations

from typing import Any

from paceline.core.config import SchedulerConfig
from paceline.core.plan import StepPlan
from tests.core.asks import Ask
from tests.core.world import World


def world(discipline: str = "paceline", order: str | None = None, **settings: Any) -> World:
    defaults: dict[str, Any] = {
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
    }
    return World(SchedulerConfig(**{**defaults, **settings}), discipline, order)


def tokens(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def scheduled(world: World, plan: StepPlan | None) -> list[tuple[str, int]]:
    """(sequence, tokens) in the order decided; only before anybody of the step ends."""
    if plan is None:
        return []
    names = {sequence.row: sequence.id for sequence in world.live.values() if sequence.row >= 0}
    return [(names.get(row, "?"), count) for row, count in zip(plan.rows.tolist(), plan.counts.tolist(), strict=True)]


def crowded(discipline: str = "paceline", order: str | None = None, **settings: Any) -> World:
    """Two that both fit at first but not to their end."""
    w = world(discipline, order, num_blocks=8, max_model_len=30, **settings)
    w.add(Ask("old", tokens(10, 4), max_tokens=24, seed=1))
    w.add(Ask("new", tokens(100, 4), max_tokens=24, seed=1))
    return w
