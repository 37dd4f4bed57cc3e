"""Fits the analytic model's coefficients to published points: mean TPOT of closed loops.

A fit is judged on what it has not seen: groups of points that differ in more than their concurrency are left out one at
a time. The mean time to the first token of such points is not used: it rests on how a run began, which is not told.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.errors import PacelineError
from paceline.sim.latency import Coefficients, Deployment, StepShape, StepTimes

# Coefficient -> (least, most, spread of the logarithm about its default that is believed without evidence)
_FREE: dict[str, tuple[float, float, float]] = {
    "compute": (0.15, 1.0, 0.4),
    "memory": (0.3, 1.0, 0.2),
    "attention": (0.05, 1.0, 0.7),
    "kv_read": (0.1, 1.0, 0.5),
    "all_reduce": (1e-6, 1e-4, 0.7),
    "link": (0.1, 1.0, 0.5),
    "step": (1e-4, 1e-2, 0.5),
    "layer": (1e-7, 1e-4, 1.0),
    "sample": (1e-6, 2e-4, 0.7),
}
_START = replace(Coefficients(), layer=5e-6)


@dataclass(frozen=True)
class ClosedLoopPoint:
    """A measured point: `concurrency` clients, each sending its next request when the last is answered."""

    deployment: Deployment
    input_tokens: int
    output_tokens: int
    concurrency: int
    tpot: float  # seconds, mean
    token_budget: int = 8192

    @property
    def group(self) -> Hashable:
        """Points that differ in their concurrency alone."""
        one = self.deployment
        return one.model.name, one.tensor_parallel, one.weight_bytes, self.input_tokens, self.output_tokens


@dataclass(frozen=True)
class Fit:
    """Coefficients and how far off they are, as shares of the measured value."""

    coefficients: Coefficients
    points: int
    groups: int
    error: float  # mean absolute, on the points fitted
    left_out_error: float  # mean absolute, each group predicted from the others; NaN with fewer than two groups
    left_out_bias: float  # mean signed, likewise
    left_out: npt.NDArray[np.float64]  # signed, by point


def closed_loop_tpot(
    times: StepTimes, input_tokens: int, output_tokens: int, concurrency: int, kv_tokens: int, token_budget: int = 8192
) -> float:
    """Mean TPOT in seconds of a closed loop in its steady state, without simulating it.

    While a request decodes, everybody else is prefilled once; those steps take longer by what the prompts add.
    """
    fits = max(1.0, kv_tokens / (input_tokens + output_tokens / 2))
    running = max(1, round(min(concurrency, fits)))
    context = running * (input_tokens + output_tokens / 2)
    decode = times.seconds(StepShape(running, running, 0.0, running, context))
    if output_tokens < 2:
        return decode
    together = max(1, token_budget // input_tokens)  # prompts of one step
    chunks = max(1, math.ceil(input_tokens / token_budget))  # steps of one prompt
    together = min(together, running)
    prefills = (running / together) * chunks
    others = max(prefills - chunks, 0.0)
    if not others:
        return decode
    tokens = round(together * input_tokens / chunks)
    pairs = together * input_tokens * input_tokens / 2 / chunks
    left = running - together
    mixed = times.seconds(StepShape(left + tokens, running, pairs, left, context * left / running))
    return decode + others * (mixed - decode) / (output_tokens - 1)


def predict(point: ClosedLoopPoint, coefficients: Coefficients) -> float:
    """TPOT in seconds."""
    deployment = point.deployment.with_coefficients(coefficients)
    return closed_loop_tpot(
        deployment.step_times(),
        point.input_tokens,
        point.output_tokens,
        point.concurrency,
        deployment.kv_tokens(0.9, point.token_budget),
        point.token_budget,
    )


def fit(points: Sequence[ClosedLoopPoint], leave_out: bool = True) -> Fit:
    """Coefficients for points of one engine on one kind of device. PacelineError with fewer than two points."""
    if len(points) < 2:
        raise PacelineError(f"a fit needs at least 2 measured points, and there are {len(points)}")
    coefficients = _solve(points)
    seen = np.array([predict(point, coefficients) / point.tpot - 1 for point in points])
    groups = list(dict.fromkeys(point.group for point in points))
    unseen = np.full(len(points), np.nan)
    if leave_out and len(groups) > 1:
        for group in groups:
            without = _solve([point for point in points if point.group != group], coefficients)
            for index, point in enumerate(points):
                if point.group == group:
                    unseen[index] = predict(point, without) / point.tpot - 1
    known = unseen[~np.isnan(unseen)]
    return Fit(
        coefficients,
        len(points),
        len(groups),
        float(np.abs(seen).mean()),
        float(np.abs(known).mean()) if known.size else math.nan,
        float(known.mean()) if known.size else math.nan,
        unseen,
    )


def _solve(points: Sequence[ClosedLoopPoint], near: Coefficients = _START) -> Coefficients:
    """Least squares of the logarithms, drawn a little to the defaults, since few points leave much open. The search
    begins `near`."""
    from scipy.optimize import least_squares

    names = list(_FREE)
    if all(point.deployment.tensor_parallel == 1 for point in points):
        names = [name for name in names if name not in ("all_reduce", "link")]
    start = np.log([getattr(_START, name) for name in names])
    spread = np.array([_FREE[name][2] for name in names])
    low, high = (np.log([_FREE[name][side] for name in names]) for side in (0, 1))
    measured = np.log([point.tpot for point in points])

    def coefficients(logarithms: npt.NDArray[np.float64]) -> Coefficients:
        return replace(_START, **dict(zip(names, np.exp(logarithms).tolist(), strict=True)))

    begin = np.clip(np.log([getattr(near, name) for name in names]), low, high)

    def residuals(logarithms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        own = coefficients(logarithms)
        off = np.log([predict(point, own) for point in points]) - measured
        return np.concatenate([off / 0.05, (logarithms - start) / spread])

    found = least_squares(
        residuals, begin, bounds=(low - 1e-9, high + 1e-9), diff_step=1e-3, loss="soft_l1", ftol=1e-4, xtol=1e-4
    )
    return coefficients(found.x)
