"""Fits the analytic model's coefficients to one measured run of a server: requests with arrivals, lengths and times.

The run is simulated with its own arrivals, under the server's discipline and settings, until the simulated requests
take what the measured ones took. Two numbers of each request are compared, as logarithms so that short and long ones
count alike: its TPOT, which says how long steps were while it decoded, and its E2E, which holds the queue and its
prompt as well. Its TTFT by itself is not: most of a short one is where in the engine's loop the request happened to
arrive, and an engine that plans a step ahead takes it in a step later than is simulated.

A run shows a handful of mixes of batch, context and prompts, so many coefficients explain it equally well, and differ
in what they say of another device. What decides between them is what was known before: the efficiencies are held near
those of an engine fitted on published points, as near as such fits are to each other (`SPREADS`). And whether host and
device take turns or work beside each other is a matter of the engine's design, which a run hardly shows: it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from paceline.errors import PacelineError
from paceline.sim.cluster import simulate
from paceline.sim.latency import Coefficients, Deployment
from paceline.sim.measured_run import MeasuredRun
from paceline.sim.question import Knobs, replica_spec
from paceline.workload.records import Records

Floats = npt.NDArray[np.float64]

SPREADS = {
    "compute": 0.20,
    "memory": 0.10,
    "attention": 0.30,
    "kv_read": 0.10,
    "all_reduce": 0.7,
    "link": 0.5,
    "step": 0.5,
    "sample": 0.7,
    "host": 1.5,
    "host_row": 1.5,
}
"""Spread of each coefficient's logarithm about its prior. The first four: how much the coefficients of vLLM differ
between the published sets of points of dense models. What a host needs is hardly known beforehand."""

_MOST = {"compute": 1.0, "memory": 1.0, "attention": 1.0, "kv_read": 1.0, "link": 1.0}
_FURTHEST = 4.0  # spreads from the prior
_POINTS = 20  # that a run counts for: its requests shared most of their steps
_ERROR = 0.05  # share that a point is believed to be off by, as in `fit`
_FEWEST = 20  # requests of a run
_NUDGE = 0.1  # spreads by which a coefficient is moved to see what changes


@dataclass(frozen=True)
class RunFit:
    """Coefficients, and what they make of the run they were fitted to."""

    coefficients: Coefficients
    requests: int
    error: float  # mean absolute share, over the TPOT and E2E of each request
    bias: dict[str, float]  # simulated over measured mean, minus one: ttft, tpot, e2e
    tails: dict[str, float]  # the same of the 99th percentiles
    left_open: dict[str, float]
    """By coefficient, near those found: the share of its prior's spread that the run leaves. 1: all of it."""


def beside(coefficients: Coefficients) -> Coefficients:
    """What is believed of an engine whose host works beside the device, from one whose host and device take turns.

    What a step and a row took there was mostly the host's; of a row, the device's part is small.
    """
    if coefficients.host or coefficients.host_row:
        return coefficients
    sample = min(Coefficients().sample, coefficients.sample)
    host_row = max(coefficients.sample - sample, sample)
    return replace(coefficients, sample=sample, host=coefficients.step, host_row=host_row)


def simulated(run: MeasuredRun, deployment: Deployment, knobs: Knobs, kv_tokens: int | None = None) -> Records:
    """The same requests, simulated. PlanError: they do not fit into the device's memory."""
    longest = int((run.prompt_tokens + run.output_tokens).max())
    return simulate(run.workload, replica_spec(deployment, knobs, longest, kv_tokens)).records


def fit_run(
    run: MeasuredRun, deployment: Deployment, knobs: Knobs, kv_tokens: int | None = None, *, overlapped: bool
) -> RunFit:
    """Coefficients of the server that a run was measured on, of one replica. `deployment` has those that are believed
    beforehand, `knobs` the server's settings, `kv_tokens` its real KV capacity where that is known; `overlapped`: its
    host works beside the device.

    PacelineError with fewer than 20 requests; PlanError: they do not fit into the device's memory.
    """
    if run.arrival.size < _FEWEST:
        raise PacelineError(f"{run.name}: a fit needs at least {_FEWEST} answered requests, and has {run.arrival.size}")
    own = deployment.coefficients
    believed = beside(own) if overlapped else replace(own, host=0.0, host_row=0.0)
    return _Search(run, deployment.with_coefficients(believed), knobs, kv_tokens).fit()


class _Search:
    """For coefficients about the deployment's own."""

    def __init__(self, run: MeasuredRun, deployment: Deployment, knobs: Knobs, kv_tokens: int | None) -> None:
        self.run, self.deployment, self.knobs, self.kv_tokens = run, deployment, knobs, kv_tokens
        own, single = deployment.coefficients, deployment.tensor_parallel == 1
        self.names = [
            name
            for name in SPREADS
            if getattr(own, name) > 0 and not (single and name in ("all_reduce", "link"))
        ]  # fmt: skip
        self.center = np.log([getattr(own, name) for name in self.names])
        self.spread = np.array([SPREADS[name] for name in self.names])
        limits = np.array([np.log(_MOST.get(name, np.inf)) for name in self.names])
        self.most = np.clip((limits - self.center) / self.spread, 1e-6, _FURTHEST)
        self.measured = _compared(run)
        self._known: tuple[bytes, Floats] = (b"", np.empty(0))

    def coefficients(self, moved: Floats) -> Coefficients:
        """`moved`: by how many spreads each."""
        values = np.exp(self.center + self.spread * moved).tolist()
        return replace(self.deployment.coefficients, **dict(zip(self.names, values, strict=True)))

    def records(self, moved: Floats) -> Records:
        deployment = self.deployment.with_coefficients(self.coefficients(moved))
        return simulated(self.run, deployment, self.knobs, self.kv_tokens)

    def residuals(self, moved: Floats) -> Floats:
        """Of the requests, then of the priors. Each of unit size where it is as large as it is believed to be."""
        if self._known[0] != moved.tobytes():
            records = self.records(moved)
            off = np.nan_to_num(np.log(_compared(records) / self.measured))
            weight = np.sqrt(_POINTS / len(records)) / _ERROR
            self._known = (moved.tobytes(), np.concatenate([off * weight, moved]))
        return self._known[1]

    def slopes(self, moved: Floats) -> Floats:
        """Of the residuals: [residuals, coefficients]. Nudges are wide enough that other decisions of the scheduler,
        which make times jump, are averaged over."""
        base, columns = self.residuals(moved), []
        for index in range(moved.size):
            nudge = _NUDGE if moved[index] + _NUDGE <= self.most[index] else -_NUDGE
            there = moved.copy()
            there[index] += nudge
            columns.append((self.residuals(there) - base) / nudge)
        self._known = (moved.tobytes(), base)
        return np.stack(columns, axis=1)

    def starts(self) -> Iterator[Floats]:
        """The prior, and hosts that need so many parts of a token's time for a step, and for its rows."""
        none = np.zeros(len(self.names))
        yield none
        if "host" not in self.names:
            return
        tpot, rows = float(np.nanmedian(self.run.tpot)), max(min(self.run.decoding, self.knobs.max_num_seqs), 1.0)
        hosts = [self.names.index("host"), self.names.index("host_row")]
        for step, row in product((0.2, 0.4, 0.6), repeat=2):
            if step + row <= 1:
                start = none.copy()
                start[hosts] = (np.log([step * tpot, row * tpot / rows]) - self.center[hosts]) / self.spread[hosts]
                yield np.clip(start, -_FURTHEST, self.most)

    def fit(self) -> RunFit:
        """Descend from the best start: a host hidden behind the device has no slope."""
        from scipy.optimize import least_squares

        start = min(self.starts(), key=lambda moved: float((self.residuals(moved) ** 2).sum()))
        result = least_squares(
            self.residuals, start, self.slopes, bounds=(-_FURTHEST - 1e-6, self.most + 1e-6), loss="soft_l1",
            ftol=1e-2, xtol=1e-3, max_nfev=8,
        )  # fmt: skip
        left = np.sqrt(np.diag(np.linalg.inv(result.jac.T @ result.jac)))
        found, run = self.records(result.x), self.run
        pairs = {"ttft": (found.ttft, run.ttft), "tpot": (found.tpot, run.tpot), "e2e": (found.e2e, run.e2e)}
        return RunFit(
            self.coefficients(result.x),
            len(found),
            float(np.nanmean(np.abs(_compared(found) / self.measured - 1))),
            {name: float(np.nanmean(ours) / np.nanmean(theirs) - 1) for name, (ours, theirs) in pairs.items()},
            {
                name: float(np.nanpercentile(ours, 99) / np.nanpercentile(theirs, 99) - 1)
                for name, (ours, theirs) in pairs.items()
            },
            dict(zip(self.names, np.minimum(left, 1.0).tolist(), strict=True)),
        )


def _compared(run: MeasuredRun | Records) -> Floats:
    """What is compared of each request: float64[2 * requests]."""
    return np.concatenate([run.tpot, run.e2e])
