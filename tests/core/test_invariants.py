"""What holds for every discipline under any requests, arrivals, aborts, failures and sizes.

`World.turn` judges every step: blocks accounted for, the token budget, contiguous chunks, a reason for everyone who
waits, no empty step while somebody could start, K/V read that was written for exactly this prefix. `World.drain` judges
the end: all ended within a bound, with the tokens they say when alone, and every block is free.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
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
from paceline.core.head_of_line import Stop
from paceline.core.orders import ORDERS
from paceline.core.scheduler import Scheduler
from paceline.errors import RequestError
from tests.core.asks import Ask
from tests.core.scripts import log_of, makes_sense, random_ask, random_config, random_script, sensible
from tests.core.world import World

PAIRS = [(name, order) for name in DISCIPLINES for order in ORDERS if makes_sense(name, order)]
# Every row under its own order and fcfs, every order under paceline; of the other pairs a script each.
USUAL = [pair for pair in PAIRS if pair[0] == "paceline" or pair[1] in (DISCIPLINES[pair[0]].order, "fcfs")]
# All of them, the rows under their own orders first.
MIXED = sorted(Random(0).sample(PAIRS, len(PAIRS)), key=lambda pair: DISCIPLINES[pair[0]].order != pair[1])
rows = pytest.mark.parametrize(("discipline", "order"), USUAL, ids=[f"{name}-{order}" for name, order in USUAL])
SCRIPTS_A_ROW = 36
MIXED_SCRIPTS = 100
quick = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def mixed(first: int, count: int) -> Iterator[tuple[str, str, int]]:
    """(discipline, order, seed) of `count` scripts, from the seed `first` on, each of the next pair of `MIXED`."""
    for number in range(count):
        yield *MIXED[number % len(MIXED)], first + number


def play(discipline: str, order: str, seed: int) -> World:
    script = random_script(Random(seed), discipline, order)
    try:
        world = script.play()
    except Exception as error:
        error.args = (f"seed {seed}: {error}\nto play it again: {script}",)
        raise
    totals = world.scheduler.totals
    assert totals.finished + totals.aborted + totals.expired == len(world.ended)
    return world


@rows
def test_random_schedules_keep_every_invariant(discipline: str, order: str) -> None:
    preemptions = copies = hits = 0
    first = USUAL.index((discipline, order)) * SCRIPTS_A_ROW  # no two pairs play the same scripts
    for seed in range(first, first + SCRIPTS_A_ROW):
        world = play(discipline, order, seed)
        preemptions += world.scheduler.totals.preemptions
        hits += world.scheduler.totals.prefix_hit_tokens
        copies += sum('"copies": [[' in line for line in world.log)
    # The schedules are worth something only when they get there.
    assert hits > 100
    row = DISCIPLINES[discipline]
    never = isinstance(row.eviction, Nobody) or row.knobs().get("router_token_ratio") == 0.0
    assert preemptions == 0 if never else preemptions > 10
    assert copies > 5 or DISCIPLINES[discipline].cache != "radix"


def test_random_schedules_of_every_row_under_every_order_keep_every_invariant() -> None:
    for discipline, order, seed in mixed(10_000, len(PAIRS)):
        play(discipline, order, seed)


# Rows that promise turns by arrival. llama.cpp's slots go by number, and TensorRT-LLM leaves out who gets no part.
IN_TURN = [
    name
    for name, row in DISCIPLINES.items()
    if row.order == "fcfs" and isinstance(row.head_of_line, Stop) and not name.startswith(("llamacpp", "trtllm"))
]


@pytest.mark.parametrize("discipline", IN_TURN)
def test_requests_start_in_the_order_they_came_where_nobody_may_pass(discipline: str) -> None:
    for seed in range(8):
        script = random_script(Random(seed), discipline, "fcfs")
        world = World(script.config, discipline, "fcfs", script.knobs, script.victim)
        started: list[int] = []
        turn = 0
        while turn < script.turns or world.live:
            adds = [action for action in script.before.get(turn, ()) if action[0] == "add"]
            world.turn(adds, script.mid.get(turn, ()), seconds=script.seconds)
            assert world.scheduler.step is not None
            started += [sequence.number for sequence in world.scheduler.step.new if sequence.index == 0]
            turn += 1
        assert started == sorted(started)


@settings(quick, max_examples=300)
@given(pair=st.sampled_from(PAIRS), random=st.randoms(use_true_random=False))
def test_small_schedules_that_shrink_keep_every_invariant(pair: tuple[str, str], random: Random) -> None:
    random_script(random, *pair).play()


class Machine(RuleBasedStateMachine):
    """Requests come, leave and step in any order; at the end everything drains."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None
        self.number = 0

    @precondition(lambda self: self.world is None)
    @rule(pair=st.sampled_from(PAIRS), seed=st.integers(0, 10_000))
    def begin(self, pair: tuple[str, str], seed: int) -> None:
        self.discipline, self.order = pair
        random = Random(seed)
        config = sensible(random_config(random), self.discipline)
        self.world = World(config, self.discipline, self.order)
        longest = max(config.max_model_len * 3 // 4, 2)
        self.bases = [tuple(random.randrange(3) for _ in range(longest)) for _ in range(2)]

    def ask(self, seed: int) -> Ask:
        assert self.world is not None
        self.number += 1
        ask = random_ask(Random(seed), f"r{self.number}", self.world.config, self.bases)
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


Machine.TestCase.settings = settings(quick, max_examples=150, stateful_step_count=30)
TestAnyOrderOfCallsKeepsEveryInvariant = Machine.TestCase


def test_the_same_inputs_give_the_same_decisions_in_any_process() -> None:
    """Twice here, and once in each of two other processes."""
    scripts = list(mixed(20_000, MIXED_SCRIPTS))
    expected = "\n".join(line for *pair, seed in scripts for line in log_of([seed], *pair))
    assert expected == "\n".join(line for *pair, seed in scripts for line in log_of([seed], *pair))
    for hash_seed in ("1", "4242"):
        played = subprocess.run(
            [sys.executable, "-m", "tests.core.scripts"],
            input="".join(f"{name} {order} {seed}\n" for name, order, seed in scripts),
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
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
            events = scheduler.complete(*arguments)
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


def test_a_second_scheduler_fed_the_same_trace_takes_the_same_decisions() -> None:
    steps = 0
    for discipline, order, seed in mixed(30_000, MIXED_SCRIPTS):
        script = random_script(Random(seed), discipline, order)
        world = script.play()
        row = discipline_named(discipline, order).with_eviction(script.victim).with_knobs(script.knobs)
        first, second = (decisions(Scheduler(world.config, row), world.trace) for _ in range(2))
        assert first == second
        scheduled = [line for line in first if isinstance(line, list) and line and isinstance(line[0], list)]
        assert len(scheduled) == world.steps, "the trace leads elsewhere than the run it was taken from"
        steps += world.steps
    assert steps > 100
