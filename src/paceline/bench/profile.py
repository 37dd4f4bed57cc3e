"""Measures how long an executor's steps take, over a grid of step shapes, and fits a profile for the simulator."""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paceline import __version__
from paceline.bench.step_grid import Executor, Grid, Rows
from paceline.errors import ConfigError
from paceline.sim.latency import StepShape, shape_of
from paceline.sim.profile import Measured, Profile, Serving, fit_profile

Progress = Callable[[str], None]

LEAST = 3  # times that every shape is measured
MOST = 40


def measure(
    executor: Executor, max_num_seqs: int, token_budget: int, seconds: float = 45.0, progress: Progress = lambda _: None
) -> list[Measured]:
    """The median time of every step of the grid, each measured several times, for about so many seconds in all.

    In turns and in an order drawn anew each time, so that a machine that slows down does so for all of them. Short
    steps, which vary more, are measured more often than long ones. ConfigError for no time.
    """
    if not seconds > 0:
        raise ConfigError("--seconds", seconds, "above 0")
    grid = Grid(executor, max_num_seqs, token_budget)
    steps = grid.steps()
    taken: list[list[float]] = [[] for _ in steps]
    shapes: list[StepShape] = []
    for rows in steps:
        shapes.append(shape_of(grid.plan(rows)))
        _timed(executor, grid, rows, fresh=True)  # the first of a kind warms up
    share, shuffle, rounds = seconds / len(steps), random.Random(0), 0
    while due := [
        index
        for index, times in enumerate(taken)
        if len(times) < LEAST or (len(times) < MOST and sum(times) + float(np.mean(times)) / 2 < share)
    ]:
        rounds += 1
        if rounds <= LEAST:
            progress(f"round {rounds} over {len(steps)} step shapes")
        shuffle.shuffle(due)
        for index in due:
            taken[index].append(_timed(executor, grid, steps[index]))
    return [Measured(shape, float(np.median(times))) for shape, times in zip(shapes, taken, strict=True)]


def _timed(executor: Executor, grid: Grid, rows: Rows, fresh: bool = False) -> float:
    plan = grid.plan(rows, fresh)
    begin = time.perf_counter()
    executor.execute(plan)
    return time.perf_counter() - begin


class DecodeTimer:
    """How long a decode step takes right now: served steps are held against it."""

    def __init__(self, executor: Executor, max_num_seqs: int) -> None:
        self._executor, self._grid = executor, Grid(executor, max_num_seqs, max_num_seqs)

    def seconds(self, rows: int, context: int, times: int = 9) -> float:
        """The median of a few steps of so many rows, each with so many tokens before it."""
        return float(np.median([_timed(self._executor, self._grid, [(context, 1)] * rows) for _ in range(times)]))

    def prompt_seconds(self, tokens: int, times: int = 9) -> float:
        """The same of a step with one prompt."""
        grid = Grid(self._executor, 1, tokens)
        return float(np.median([_timed(self._executor, grid, [(0, tokens)]) for _ in range(times)]))


def profile(
    samples: list[Measured],
    info: dict[str, Any],
    loop: tuple[float, float],
    serving: Serving | None = None,
    facts: dict[str, Any] | None = None,
) -> Profile:
    """Fit measured steps. `info` says what the executor is, as the engine's set-up describes it; `loop` is what the
    engine's own loop adds to a step: (seconds, seconds per row that gets a token). `facts` are kept with it."""
    fitted = fit_profile(samples)
    per_step, per_row = loop
    return Profile(
        engine="paceline",
        engine_version=__version__,
        model=Path(info["model"]).name,
        hardware=f"{info['device']}, {machine()}",
        dtype=info["dtype"],
        kv_tokens=info["num_blocks"] * info["block_size"],
        block_size=info["block_size"],
        knots=[(tokens, value + per_step) for tokens, value in fitted.knots],
        per_sample=fitted.per_sample + per_row,
        per_pair=fitted.per_pair,
        per_context=fitted.per_context,
        error=fitted.error,
        left_out_error=fitted.left_out_error,
        left_out_worst=fitted.left_out_worst,
        shapes=len(samples),
        facts={
            "loop_seconds_a_step": per_step,
            "loop_seconds_a_row": per_row,
            "discipline": info.get("discipline", ""),
            "description": info["description"],
            **(facts or {}),
        },
        serving=serving,
    )


def machine() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    cores = len(names) or 1
    return f"{cores} x {names[0]}" if names else platform.processor() or platform.machine()
