"""Measures how long an executor's steps take, over a grid of step shapes, and fits a profile for the simulator."""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline import __version__
from paceline.bench.bystanders import Bystanders, Patience
from paceline.bench.step_grid import Executor, Grid, Rows
from paceline.errors import ConfigError
from paceline.sim.latency import StepShape, shape_of
from paceline.sim.profile import Measured, Profile, Serving, fit_profile, step_times

Progress = Callable[[str], None]
Timed = tuple[float, int, float]
"""(when, the number of a step in its grid, the seconds it took)."""

LEAST = 2  # times that every shape is measured, if there is time for it
MOST = 40
STALL = 1.6  # times the median, from which on a step was held up by something that has nothing to do with it
TELL = 5.0  # seconds after which one hears how far a round is
STRETCH = 2.0  # seconds after which it is seen whether others were at work
BIN = 2.0  # seconds over which a machine's speed is told
VARIES = 0.08  # spread of its speed from which on a machine's profile is good for an average only


@dataclass(frozen=True)
class Measurement:
    """What a grid of steps took, and how steady the machine was meanwhile."""

    samples: list[Measured]
    spread: float
    """Of the machine's speed in stretches of two seconds: its 90th over its 10th percentile, less one."""


class Meter:
    """Times the steps of a grid, each of them many times.

    In turns and in an order drawn anew each time, so that a machine that slows down does so for all of them; a step's
    time is the mean over the machine's moods, without stalls, and without stretches in which others used the machine.
    """

    def __init__(
        self, executor: Executor, max_num_seqs: int, token_budget: int, progress: Progress, patience: Patience
    ) -> None:
        self._executor, self._progress, self._patience = executor, progress, patience
        self._grid = Grid(executor, max_num_seqs, token_budget)
        self._shuffle = random.Random(0)
        self._order: list[Timed] = []
        self.steps = self._grid.steps()
        self.taken: list[list[float]] = [[] for _ in self.steps]
        self._shapes: list[StepShape] = []
        for index in self._told("warm-up", range(len(self.steps))):  # the first of a kind takes longer
            self._shapes.append(shape_of(self._grid.plan(self.steps[index])))
            _timed(executor, self._grid, self.steps[index], fresh=True)
        self._begin()

    def turn(self, name: str, due: Sequence[int]) -> None:
        """Time these steps, by their numbers, once each; what others disturbed does not count."""
        due = list(due)
        self._shuffle.shuffle(due)
        for index in self._told(name, due):
            seconds = _timed(self._executor, self._grid, self.steps[index])
            self._order.append((time.perf_counter(), index, seconds))
            self.taken[index].append(seconds)
            if self._order[-1][0] - self._began > STRETCH:
                self._judge()

    def _begin(self) -> None:
        """A stretch begins here."""
        self._bystanders, self._began, self._start = Bystanders(), time.perf_counter(), len(self._order)

    def _judge(self) -> None:
        """A stretch ends here: forget it if others were at work."""
        if self._patience.again(self._bystanders.seen()):
            for _, index, seconds in self._order[self._start :]:
                self.taken[index].remove(seconds)
            del self._order[self._start :]
        self._begin()

    def found(self) -> Measurement:
        """Of all turns: at least one time of every step."""
        typical = [_typical(times) for times in self.taken]
        samples = [Measured(shape, value) for shape, value in zip(self._shapes, typical, strict=True)]
        return Measurement(samples, _spread(self._order, typical))

    def _told(self, name: str, numbers: Sequence[int]) -> Iterator[int]:
        """Go through them, and say now and then how far one is."""
        if name:
            self._progress(f"{name} over {len(numbers)} step shapes")
        told = time.perf_counter()
        for done, number in enumerate(numbers):
            if time.perf_counter() - told >= TELL:
                told = time.perf_counter()
                self._progress(f"  {done} of {len(numbers)}")
            yield number


def measure(
    executor: Executor,
    max_num_seqs: int,
    token_budget: int,
    seconds: float = 45.0,
    progress: Progress = lambda _: None,
    patience: Patience | None = None,
) -> Measurement:
    """The time of every step of the grid, each measured several times, for about so many seconds in all; once where
    going over them takes longer than that. Without `patience` all counts, whatever else the machine does.

    Short steps, which vary more, are measured more often than long ones. ConfigError for no time.
    """
    if not seconds > 0:
        raise ConfigError("--seconds", seconds, "above 0")
    meter = Meter(executor, max_num_seqs, token_budget, progress, patience or Patience(0, 0.0))
    share = seconds / len(meter.steps)
    meter.turn("round 1", range(len(meter.steps)))
    least, rounds = 1 if sum(map(sum, meter.taken)) > seconds else LEAST, 1
    while due := [
        index
        for index, times in enumerate(meter.taken)
        if len(times) < least or (len(times) < MOST and sum(times) + float(np.mean(times)) / 2 < share)
    ]:
        rounds += 1
        meter.turn(f"round {rounds}" if rounds <= LEAST else "", due)
    return meter.found()


def _typical(times: Sequence[float]) -> float:
    values = np.array(times)
    return float(values[values <= STALL * np.median(values)].mean())


def _spread(order: Sequence[Timed], typical: Sequence[float]) -> float:
    """How much the machine's speed differs between stretches of the measurement, each step against its own kind."""
    when = np.array([at for at, _, _ in order])
    ratio = np.array([seconds / typical[index] for _, index, seconds in order])
    stretch = ((when - when[0]) / BIN).astype(np.int64)
    speeds = [float(np.median(ratio[stretch == one])) for one in np.unique(stretch)]
    return float(np.percentile(speeds, 90) / np.percentile(speeds, 10) - 1)


def _timed(executor: Executor, grid: Grid, rows: Rows, fresh: bool = False) -> float:
    plan = grid.plan(rows, fresh)
    begin = time.perf_counter()
    executor.execute(plan)
    return time.perf_counter() - begin


class StepTimer:
    """How long a step takes right now: served steps are held against it."""

    def __init__(self, executor: Executor, max_num_seqs: int, token_budget: int) -> None:
        self._executor, self._grid = executor, Grid(executor, max_num_seqs, token_budget)

    def seconds(self, rows: int, context: int, prompt: int = 0, times: int = 9) -> float:
        """The median of a few steps: so many rows decode, each with so many tokens before it, beside a prompt of so
        many tokens (0: none)."""
        step = [(context, 1)] * rows + [(0, prompt)] * (prompt > 0)
        _timed(self._executor, self._grid, step)
        return float(np.median([_timed(self._executor, self._grid, step) for _ in range(times)]))


class FittedTimer:
    """The same from the fit: for a device that has no room for a server beside the executor."""

    def __init__(self, measured: Measurement) -> None:
        fitted = fit_profile(measured.samples)
        self._times = step_times(fitted.knots, fitted.per_sample, fitted.per_pair, fitted.per_context)

    def seconds(self, rows: int, context: int, prompt: int = 0) -> float:
        """As StepTimer's."""
        sampled = rows + (prompt > 0)
        return self._times.seconds(StepShape(rows + prompt, sampled, prompt**2 / 2, rows, float(rows * (context + 1))))


def profile(
    measured: Measurement,
    info: dict[str, Any],
    loop: tuple[float, float],
    serving: Serving | None = None,
    facts: dict[str, Any] | None = None,
) -> Profile:
    """Fit measured steps. `info` says what the executor is, as the engine's set-up describes it; `loop` is what the
    engine's own loop adds to a step: (seconds, seconds per row that gets a token). `facts` are kept with it."""
    fitted = fit_profile(measured.samples)
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
        shapes=len(measured.samples),
        facts={
            "loop_seconds_a_step": per_step,
            "loop_seconds_a_row": per_row,
            "speed_spread": measured.spread,
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
