"""Measures how long an executor's steps take, over a grid of step shapes, and fits a profile for the simulator."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from paceline import __version__
from paceline.core.params import SamplingParams
from paceline.core.plan import Entered, StepPlan, StepResult
from paceline.errors import ConfigError
from paceline.sim.latency import StepShape, shape_of
from paceline.sim.profile import Measured, Profile, fit_profile

Progress = Callable[[str], None]

_FIRST_TOKEN = 100  # ids below are often special
_GREEDY = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


class Executor(Protocol):
    """What is measured."""

    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        ...


class Grid:
    """Steps that the executor's memory allows: decodes, prompts whole and in chunks, and both together."""

    def __init__(self, executor: Executor, max_num_seqs: int, token_budget: int) -> None:
        self.executor, self.rows, self.budget = executor, max_num_seqs, token_budget
        length = executor.max_model_len
        self._tokens = np.random.default_rng(0).integers(
            _FIRST_TOKEN, executor.vocab_size, (max_num_seqs, length), dtype=np.int32
        )
        self._table = np.zeros((max_num_seqs, -(-length // executor.block_size)), np.int32)
        self._step = 0

    def steps(self) -> list[list[tuple[int, int]]]:
        """Each step as (tokens before, tokens now) of its rows."""
        room = self.executor.num_blocks * self.executor.block_size
        longest = self.executor.max_model_len - 2
        contexts = [size for size in (16, 128, 512, 1024, 2048, 4096) if size <= longest]
        counts = [count for count in (1, 2, 4, 8, 16, 32, 64, 128, 256) if count <= self.rows]
        chunks = [size for size in (8, 32, 64, 128, 256, 512, 1024, 2048, 4096) if size <= min(self.budget, longest)]
        found = [[(context, 1)] * count for count in counts for context in contexts]
        found += [[(0, size)] for size in chunks]
        found += [[(context, size)] for size in chunks[2::2] for context in contexts[1:] if context + size <= longest]
        found += [
            [(context, 1)] * count + [(0, size)]
            for count in counts[1::2]
            for size in chunks[1::2]
            for context in contexts[1:3]
        ]
        return [rows for rows in found if self._fits(rows, room)]

    def _fits(self, rows: list[tuple[int, int]], room: int) -> bool:
        size = self.executor.block_size
        held = sum(-(-(before + now) // size) * size for before, now in rows)
        return len(rows) <= self.rows and sum(now for _, now in rows) <= self.budget and held <= room

    def plan(self, rows: list[tuple[int, int]], sample: bool = True) -> StepPlan:
        """A step of those rows. Each has blocks of its own; what lies in them does not matter for the time."""
        size, block = self.executor.block_size, 0
        for row, (before, now) in enumerate(rows):
            needs = -(-(before + now) // size)
            self._table[row, :needs] = np.arange(block, block + needs)
            block += needs
        self._step += 1
        starts, counts = (np.array([pair[side] for pair in rows], np.int32) for side in (0, 1))
        return StepPlan(
            step=self._step,
            rows=np.arange(len(rows), dtype=np.int32),
            starts=starts,
            counts=counts,
            samples=np.full(len(rows), sample, np.bool_),
            tokens=self._tokens,
            block_table=self._table,
            prompt_lengths=np.ones(self.rows, np.int32),
            entered=[Entered(row, str(row), _GREEDY, row, 1) for row in range(len(rows))],
        )


def measure(
    executor: Executor, max_num_seqs: int, token_budget: int, seconds: float = 60.0, progress: Progress = lambda _: None
) -> list[Measured]:
    """The median time of every step of the grid, each measured several times, in turns, for about so many seconds.

    In turns, so that a machine that slows down does so for all of them.
    """
    grid = Grid(executor, max_num_seqs, token_budget)
    steps = grid.steps()
    taken: list[list[float]] = [[] for _ in steps]
    shapes: list[StepShape] = []
    for rows in steps:
        plan = grid.plan(rows)
        shapes.append(shape_of(plan))
        executor.execute(plan)  # the first of a kind warms up
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 3 or (time.perf_counter() < end and rounds < 25):
        rounds += 1
        progress(f"round {rounds} over {len(steps)} step shapes")
        for index, rows in enumerate(steps):
            plan = grid.plan(rows)
            plan.entered = []
            begin = time.perf_counter()
            executor.execute(plan)
            taken[index].append(time.perf_counter() - begin)
    return [Measured(shape, float(np.median(times))) for shape, times in zip(shapes, taken, strict=True)]


def profile(
    executor: Executor,
    info: dict[str, Any],
    max_num_seqs: int,
    token_budget: int,
    seconds: float = 60.0,
    progress: Progress = lambda _: None,
) -> Profile:
    """Measure and fit. `info` says what the executor is, as the engine's set-up describes it."""
    if seconds <= 0:
        raise ConfigError("--seconds", seconds, "above 0")
    samples = measure(executor, max_num_seqs, token_budget, seconds, progress)
    overhead = scheduler_seconds()
    fitted = fit_profile(samples)
    return Profile(
        engine="paceline",
        engine_version=__version__,
        model=info["model"],
        hardware=f"{info['device']}, {platform.processor() or platform.machine()}",
        dtype=info["dtype"],
        kv_tokens=info["num_blocks"] * info["block_size"],
        block_size=info["block_size"],
        knots=[(tokens, value + overhead) for tokens, value in fitted.knots],
        per_sample=fitted.per_sample,
        per_pair=fitted.per_pair,
        per_context=fitted.per_context,
        error=fitted.error,
        left_out_error=fitted.left_out_error,
        left_out_worst=fitted.left_out_worst,
        shapes=len(samples),
        facts={"scheduler_seconds_a_step": overhead, "description": info["description"]},
    )


def scheduler_seconds() -> float:
    """What the scheduler itself adds to a step of eight decodes: it runs between the forwards."""
    from paceline.core.config import SchedulerConfig
    from paceline.core.request import Request
    from paceline.core.scheduler import Scheduler

    scheduler = Scheduler(SchedulerConfig(num_blocks=256, max_model_len=512))
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    for index in range(8):
        scheduler.add(Request(str(index), np.arange(16 * index, 16 * index + 8, dtype=np.int32), params), 0.0)
    times = []
    for _ in range(150):
        begin = time.perf_counter()
        plan = scheduler.schedule(0.0)
        if plan is None:
            break
        scheduler.complete(StepResult(np.zeros(int(plan.samples.sum()), np.int32)), 0.0)
        times.append(time.perf_counter() - begin)
    return float(np.median(times))
