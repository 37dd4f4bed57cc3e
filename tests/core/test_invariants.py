"""What holds for every discipline under any requests, arrivals, aborts, failures and sizes.

`World.turn` judges every step: blocks accounted for, the token budget, contiguous chunks, a reason for everyone who
waits, no empty step while somebody could start, K/V read that was written for exactly this prefix. `World.drain` judges
the end: all ended within a bound, with the tokens they say when alone, and every block is free.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.core.disciplines import DISCIPLINES
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.evictions import Nobody
from paceline.core.orders import ORDERS
from paceline.core.plan import StepResult
from paceline.core.scheduler import Scheduler
from paceline.errors import RequestError
from tests.core.driver import (
    Ask,
    World,
    equals_livelock,
    log_of,
    makes_sense,
    random_ask,
    random_config,
    random_script,
    sensible,
)

ROWS = [
    (name, order)
    for name, row in DISCIPLINES.items()
    for order in dict.fromkeys((row.order, "fcfs", "priority", *(ORDERS if name == "paceline" else ())))
    if makes_sense(name, order)
]
rows = pytest.mark.parametrize(("discipline", "order"), ROWS, ids=[f"{name}-{order}" for name, order in ROWS])
SCRIPTS_A_ROW = 250
quick = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@rows
def test_random_schedules_keep_every_invariant(discipline: str, order: str) -> None:
    distinct = equals_livelock(discipline, order)
    preemptions = copies = hits = 0
    usual = order in (DISCIPLINES[discipline].order, "fcfs", "priority")
    for seed in range(SCRIPTS_A_ROW if usual else SCRIPTS_A_ROW * 2 // 5):
        script = random_script(Random(seed), discipline, order, distinct)
        try:
            world = script.play()
        except Exception as error:
            error.args = (f"seed {seed}: {error}\nto play it again: {script}",)
            raise
        totals = world.scheduler.totals
        preemptions += totals.preemptions
        hits += totals.prefix_hit_tokens
        copies += sum('"copies": [[' in line for line in world.log)
        assert totals.finished == len(world.ended)
    # The schedules are worth something only when they get there.
    assert hits > 100
    row = DISCIPLINES[discipline]
    never = isinstance(row.eviction, Nobody) or row.knobs().get("router_token_ratio") == 0.0
    assert preemptions == 0 if never else preemptions > 10
    assert copies > 10 or DISCIPLINES[discipline].cache != "radix"


@rows
@quick
@given(random=st.randoms(use_true_random=False))
def test_small_schedules_that_shrink_keep_every_invariant(discipline: str, order: str, random: Random) -> None:
    random_script(random, discipline, order, equals_livelock(discipline, order)).play()


class Machine(RuleBasedStateMachine):
    """Requests come, leave and step in any order; at the end everything drains."""

    discipline, order = "paceline", "fcfs"

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None
        self.number = 0

    @precondition(lambda self: self.world is None)
    @rule(seed=st.integers(0, 10_000))
    def begin(self, seed: int) -> None:
        random = Random(seed)
        config = sensible(random_config(random), self.discipline)
        self.world = World(config, self.discipline, self.order)
        longest = max(config.max_model_len * 3 // 4, 2)
        self.bases = [tuple(random.randrange(3) for _ in range(longest)) for _ in range(2)]

    def ask(self, seed: int) -> Ask:
        assert self.world is not None
        self.number += 1
        ask = random_ask(Random(seed), f"r{self.number}", self.world.config, self.bases)
        if equals_livelock(self.discipline, self.order):
            return Ask(ask.id, ask.prompt, ask.max_tokens, priority=ask.priority, arrival=float(self.number))
        return ask

    @precondition(lambda self: self.world is not None and len(self.world.live) < 24)
    @rule(seed=st.integers(0, 10_000))
    def add(self, seed: int) -> None:
        assert self.world is not None
        self.world.act([("add", self.ask(seed))])

    @precondition(lambda self: self.world is not None and self.world.live)
    @rule(data=st.data(), whole=st.booleans())
    def leave(self, data: st.DataObject, whole: bool) -> None:
        self.world_turnless([self.leaving(data, whole)])

    @precondition(lambda self: self.world is not None and self.world.live)
    @rule(data=st.data(), whole=st.booleans(), fail=st.booleans())
    def step_while_one_leaves(self, data: st.DataObject, whole: bool, fail: bool) -> None:
        assert self.world is not None
        self.world.turn(mid=[self.leaving(data, whole)], fail=fail)

    @precondition(lambda self: self.world is not None)
    @rule(seed=st.integers(0, 10_000), fail=st.booleans())
    def step_while_one_comes(self, seed: int, fail: bool) -> None:
        assert self.world is not None
        self.world.turn(mid=[("add", self.ask(seed))], fail=fail)

    @precondition(lambda self: self.world is not None)
    @rule(turns=st.integers(1, 8))
    def steps(self, turns: int) -> None:
        assert self.world is not None
        for _ in range(turns):
            self.world.turn()

    @precondition(lambda self: self.world is not None)
    @rule()
    def reset(self) -> None:
        self.world_turnless([("reset", None)])

    def leaving(self, data: st.DataObject, whole: bool) -> tuple[str, Any]:
        assert self.world is not None
        target = data.draw(st.sampled_from(sorted(self.world.live)))
        return ("abort", self.world.live[target].request.id) if whole else ("finish", target)

    def world_turnless(self, actions: list[tuple[str, Any]]) -> None:
        assert self.world is not None
        self.world.act(actions)
        self.world.forget_rows_of_ended()

    @invariant()
    def accounts_balance(self) -> None:
        if self.world is not None:
            stats = self.world.scheduler.stats()
            assert stats.blocks_free + stats.blocks_cached + stats.blocks_held == stats.blocks_total
            assert stats.running + stats.waiting == len(self.world.live)

    def teardown(self) -> None:
        if self.world is not None:
            self.world.drain()


@rows
def test_any_order_of_calls_keeps_every_invariant(discipline: str, order: str) -> None:
    machine = type("Machine", (Machine,), {"discipline": discipline, "order": order})
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(quick, max_examples=40, stateful_step_count=30),
    )


@rows
def test_the_same_inputs_give_the_same_decisions(discipline: str, order: str) -> None:
    assert log_of(range(40), discipline, order) == log_of(range(40), discipline, order)


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_another_process_takes_the_same_decisions(discipline: str) -> None:
    order = DISCIPLINES[discipline].order
    expected = "\n".join(log_of(range(20), discipline, order))
    root = Path(__file__).parents[2]
    for hash_seed in ("1", "4242"):
        played = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("driver.py")), discipline, order, "0", "20"],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        assert played.stdout == expected


def decisions(scheduler: Scheduler, trace: list[tuple[Any, ...]]) -> list[Any]:
    """Feed recorded calls, results and times to a scheduler. What it decided, down to the block."""
    decided: list[Any] = []
    for name, *arguments in trace:
        if name == "schedule":
            plan = scheduler.schedule(*arguments)
            decided.append(None)
            if plan is not None:
                tables = plan.block_table[plan.rows].tolist()
                decided[-1] = [
                    column.tolist() for column in (plan.rows, plan.starts, plan.counts, plan.samples, plan.copies)
                ] + [plan.entered, tables, scheduler.why(), scheduler.stats()]
        elif name == "complete":
            tokens, now = arguments
            events = scheduler.complete(StepResult(tokens=tokens), now)
            decided.append([sequence.id for sequence in events.finished])
        elif name == "reset":
            scheduler.kv.reset()
        elif name == "finish":
            from paceline.core.request import FinishReason

            sequence_id, now = arguments
            scheduler.finish(sequence_id, FinishReason.STOP, now)
        else:
            try:
                getattr(scheduler, name)(*arguments)
            except RequestError as error:
                decided.append(str(error))
    return decided


@rows
def test_a_second_scheduler_fed_the_same_trace_takes_the_same_decisions(discipline: str, order: str) -> None:
    steps = 0
    for seed in range(1000, 1030):
        script = random_script(Random(seed), discipline, order, equals_livelock(discipline, order))
        world = script.play()
        row = discipline_named(discipline, order).with_knobs(script.knobs)
        first, second = (decisions(Scheduler(world.config, row), world.trace) for _ in range(2))
        assert first == second
        scheduled = [line for line in first if isinstance(line, list) and line and isinstance(line[0], list)]
        assert len(scheduled) == world.steps, "the trace leads elsewhere than the run it was taken from"
        steps += world.steps
    assert steps > 100
