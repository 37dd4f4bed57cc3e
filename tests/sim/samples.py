"""Small loads and replicas for the tests of the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.disciplines import discipline
from paceline.sim.cluster import ReplicaSpec
from paceline.sim.hardware import hardware
from paceline.sim.latency import Deployment
from paceline.sim.models import model
from paceline.workload.requests import TimedRequest, Workload
from paceline.workload.traces import read

DEPLOYMENT = Deployment(model("llama-3.1-8b"), hardware("h100"))


def trace(name: str, count: int, rate: float | None = None) -> Workload:
    """The head of a shipped trace, at another mean rate if given."""
    workload = read(name).head(count)
    return workload if rate is None else workload.at_rate(rate)


def azure(count: int, rate: float | None = None) -> Workload:
    return trace("azure2023_conv", count, rate)


def short(workload: Workload, most_input: int, most_output: int) -> Workload:
    """Prompts and answers cut, so that small replicas can hold them."""
    requests = [
        replace(
            request,
            prompt_len=min(request.prompt_len, most_input),
            output_len=min(request.output_len, most_output),
            parts=cut(request, most_input),
        )
        for request in workload.requests
    ]
    return replace(workload, requests=requests)


def cut(request: TimedRequest, most: int) -> tuple[tuple[int, int], ...]:
    parts, left = [], most
    for key, length in request.parts:
        if left > 0:
            parts.append((key, min(length, left)))
        left -= length
    return tuple(parts)


def shared_prefixes(count: int, rate: float = 60.0, seed: int = 3) -> Workload:
    """Prompts of a few families; some are twins."""
    random = np.random.default_rng(seed)
    requests = []
    at = 0.0
    for index in range(count):
        at += float(random.exponential(1 / rate))
        family, own = int(random.integers(4)), int(random.integers(20))
        parts = ((family, 100 + 40 * family), (1000 + own, 30 + int(random.integers(200))))
        requests.append(
            TimedRequest(str(index), at, sum(length for _, length in parts), 1 + int(random.integers(80)), parts=parts)
        )
    return Workload(requests, "shared prefixes", "Poisson")


def spec(name: str = "paceline", *, speed: float = 1.0, order: str | None = None, **settings: Any) -> ReplicaSpec:
    """A replica of Llama-3.1-8B on an H100 under that discipline."""
    row = discipline(name, order)
    given = {"num_blocks": DEPLOYMENT.kv_tokens(0.9, 8192) // row.defaults.get("block_size", 16), **settings}
    given.setdefault("max_model_len", 16384)
    return ReplicaSpec(row.configure(**given), row, DEPLOYMENT.step_times().scaled(speed))
