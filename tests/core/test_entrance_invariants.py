"""Random schedules with tenants, quotas that change, borrowing, time limits and queue limits keep every invariant."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from paceline.core.disciplines import DISCIPLINES
from paceline.core.quotas import Quota, Quotas, Rate
from paceline.core.request import FinishReason, Request
from tests.core.asks import Ask
from tests.core.scripts import Script, random_script
from tests.core.world import World

SCRIPTS_A_ROW = 15


def random_quota(random: Random) -> Quota:
    def maybe(rate: float, burst: float) -> Rate | None:
        return Rate(random.uniform(rate / 4, rate), burst) if random.random() < 0.5 else None

    return Quota(
        requests=maybe(2.0, random.randint(1, 3)),
        prompt_tokens=maybe(20.0, 64.0),
        output_tokens=maybe(10.0, random.randint(1, 10)),
        concurrency=random.choice([None, 1, 2]),
        borrow=random.random() < 0.4,
    )


def random_quotas(random: Random) -> Quotas:
    return Quotas(random_quota(random), {name: random_quota(random) for name in "ab" if random.random() < 0.7})


class TenantWorld(World):
    """A world whose requests have tenants and time limits, drawn by their names."""

    def __init__(self, script: Script, seed: int) -> None:
        super().__init__(script.config, script.discipline, script.order, script.knobs)
        self.random = Random(seed)
        self.scheduler.set_quotas(random_quotas(self.random), 0.0)
        self.waited_for_quota = 0

    def request(self, ask: Ask) -> Request:
        request = super().request(ask)
        random = Random(repr((ask.id, ask.prompt)))
        request.tenant = random.choice("abc")
        request.queue_timeout = random.choice([None, None, None, 6.0])
        request.timeout = random.choice([None, None, None, 12.0])
        return request

    def turn(self, *arguments: Any, **more: Any) -> Any:
        if self.random.random() < 0.05:
            self.scheduler.set_quotas(random_quotas(self.random), self.now)
        plan = super().turn(*arguments, **more)
        self.waited_for_quota += any("quota" in why for why in self.scheduler.why().values())
        return plan

    def bound(self) -> int:
        # Buckets fill at a quarter of their rate at least; nobody owes more than all there is.
        work = sum(len(self.references[name].tokens) for name in self.live)
        return super().bound() * 4 + int((4 * work + 8 * len(self.live)) / 0.5) + 64


def play(script: Script, seed: int) -> TenantWorld:
    world = TenantWorld(script, seed)
    for turn in range(script.turns):
        world.turn(script.before.get(turn, ()), script.mid.get(turn, ()), turn in script.fails, script.seconds)
    world.drain()
    return world


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_random_schedules_with_quotas_keep_every_invariant(discipline: str) -> None:
    waited = expired = 0
    for seed in range(SCRIPTS_A_ROW):
        script = random_script(Random(seed), discipline, DISCIPLINES[discipline].order)
        try:
            world = play(script, seed)
        except Exception as error:
            error.args = (f"seed {seed}: {error}\nto play it again: {script}",)
            raise
        waited += world.waited_for_quota
        expired += sum(one.finish_reason is FinishReason.EXPIRED for one in world.ended.values())
    assert waited > 10 and expired > 2


def log_of(seeds: Iterable[int]) -> list[str]:
    return [line for seed in seeds for line in play(random_script(Random(seed), "paceline", "fcfs"), seed).log]


def test_the_same_inputs_give_the_same_decisions() -> None:
    assert log_of(range(20)) == log_of(range(20))
