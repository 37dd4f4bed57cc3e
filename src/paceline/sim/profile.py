"""A measured profile: step times of one engine, one model, one machine, as a small JSON file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError, PacelineError
from paceline.sim.json_files import read_own, write_own
from paceline.sim.latency import StepShape, StepTimes

FORMAT = "paceline-profile-1"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """One measured step."""

    shape: StepShape
    seconds: float


@dataclass(frozen=True)
class Serving:
    """What a server and its clients on the same machine add to the engine's own steps, and around them."""

    per_step: float  # seconds that every step takes longer
    per_row: float  # and for each row that gets a token, which is streamed while the next step runs
    entry_seconds: float  # from when a request is due until the engine sees it
    exit_seconds: float  # from when a token is there until its client has it
    error: float  # mean absolute share, on the waves measured
    waves: list[tuple[int, float, float]] = field(default_factory=list)
    """(requests at a time, seconds of a step by the engine alone, and as served)."""
    per_request: float = 0.0
    """Seconds that a request costs its step for being taken in and answered: in the step of its first token."""


@dataclass(frozen=True)
class Profile:
    """What `paceline profile` writes and `paceline simulate --profile` reads."""

    engine: str
    engine_version: str
    model: str
    hardware: str
    dtype: str
    kv_tokens: int  # that the engine really had room for
    block_size: int
    knots: list[tuple[int, float]]  # (tokens, seconds) of a step that attends to nothing; straight lines between
    per_sample: float
    per_pair: float
    per_context: float
    error: float  # mean absolute share, on the shapes measured
    left_out_error: float  # mean absolute share, each shape predicted from the others
    left_out_worst: float
    shapes: int
    facts: dict[str, Any] = field(default_factory=dict)
    serving: Serving | None = None

    def step_times(self, served: bool = True) -> StepTimes:
        """Step times of the engine behind its server, as far as that was measured, or (`served` False) by itself."""
        serving = self.serving if served else None
        if serving is None:
            return step_times(self.knots, self.per_sample, self.per_pair, self.per_context)
        knots = [(tokens, seconds + serving.per_step) for tokens, seconds in self.knots]
        per_sample = self.per_sample + serving.per_row
        return step_times(knots, per_sample, self.per_pair, self.per_context, serving.per_request)

    def write(self, path: Path) -> None:
        write_own(path, FORMAT, self)

    @staticmethod
    def read(path: Path) -> Profile:
        """ModelError says what is wrong with the file."""
        values = read_own(path, "--profile", FORMAT, "paceline profile")
        try:
            if isinstance(values.get("serving"), dict):
                values["serving"] = Serving(**values["serving"])
            profile = Profile(**values)
            knots = [(int(tokens), float(seconds)) for tokens, seconds in profile.knots]
        except (TypeError, ValueError) as error:
            raise ModelError(f"--profile {path}: {error}") from None
        if not knots or any(seconds < 0 or not math.isfinite(seconds) for _, seconds in knots):
            raise ModelError(f"--profile {path}: its knots must be (tokens, seconds) with seconds of at least 0")
        return Profile(**{**values, "knots": knots})


def step_times(
    knots: Sequence[tuple[int, float]], per_sample: float, per_pair: float, per_context: float, per_first: float = 0.0
) -> StepTimes:
    """Straight lines between the knots, and on beyond the last."""
    tokens = np.array([knot[0] for knot in knots], np.float64)
    seconds = np.array([knot[1] for knot in knots])
    slope = (seconds[-1] - seconds[-2]) / (tokens[-1] - tokens[-2]) if tokens.size > 1 else 0.0

    def fixed(count: int) -> float:
        if count > tokens[-1]:
            return float(seconds[-1] + slope * (count - tokens[-1]))
        return float(np.interp(count, tokens, seconds))

    return StepTimes(fixed, per_sample, per_pair, per_context, per_first=per_first)


@dataclass(frozen=True)
class ProfileFit:
    """The numbers of a profile."""

    knots: list[tuple[int, float]]
    per_sample: float
    per_pair: float
    per_context: float
    error: float
    left_out_error: float
    left_out_worst: float


def fit_profile(samples: Sequence[Measured]) -> ProfileFit:
    """Least squares of the relative error, nothing below zero. PacelineError with fewer than 8 shapes."""
    if len(samples) < 8:
        raise PacelineError(f"a profile needs at least 8 measured shapes, and there are {len(samples)}")
    knots = _knots(samples)
    weights = _solve(samples, knots)
    seen = _predict(samples, knots, weights)
    measured = np.array([sample.seconds for sample in samples])
    off = []
    for index, sample in enumerate(samples):
        others = [*samples[:index], *samples[index + 1 :]]
        kept = _knots(others)
        off.append(abs(float(_predict([sample], kept, _solve(others, kept))[0]) / sample.seconds - 1))
    count = len(knots)
    return ProfileFit(
        list(zip(knots, weights[:count].tolist(), strict=True)),
        float(weights[count]),
        float(weights[count + 1]),
        float(weights[count + 2]),
        float(np.abs(seen / measured - 1).mean()),
        float(np.mean(off)),
        float(np.max(off)),
    )


def _knots(samples: Sequence[Measured]) -> list[int]:
    """Numbers of tokens that were measured, thinned so that each is backed by its neighbours."""
    sizes = sorted({sample.shape.tokens for sample in samples})
    kept = [sizes[0]]
    for size in sizes[1:]:
        if size >= 1.35 * kept[-1]:
            kept.append(size)
    if kept[-1] != sizes[-1]:
        kept[-1] = sizes[-1]
    return kept


def _features(samples: Sequence[Measured], knots: list[int]) -> Floats:
    """[samples, knots + 3]: the share of each knot, then sampled rows, pairs and context."""
    features = np.zeros((len(samples), len(knots) + 3))
    at = np.array(knots, np.float64)
    for row, sample in enumerate(samples):
        shape = sample.shape
        upper = int(np.clip(np.searchsorted(at, shape.tokens), 1, max(len(knots) - 1, 1)))
        if len(knots) == 1:
            features[row, 0] = 1.0
        else:
            share = (shape.tokens - at[upper - 1]) / (at[upper] - at[upper - 1])
            features[row, upper - 1], features[row, upper] = 1 - share, share
        features[row, len(knots) :] = shape.sampled, shape.pairs, shape.context
    return features


def _solve(samples: Sequence[Measured], knots: list[int]) -> Floats:
    from scipy.optimize import nnls

    seconds = np.array([sample.seconds for sample in samples])
    matrix = _features(samples, knots) / seconds[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-30)
    found, _ = nnls(matrix / scale, np.ones(len(samples)), maxiter=1000)
    return np.asarray(found / scale, np.float64)


def _predict(samples: Sequence[Measured], knots: list[int], weights: Floats) -> Floats:
    return np.asarray(_features(samples, knots) @ weights, np.float64)
