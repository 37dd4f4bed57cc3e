"""Knobs for a given number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.errors import PacelineError
from paceline.sim.capacity import capacity, first_guess
from paceline.sim.engines import engine
from paceline.sim.latency import Deployment
from paceline.sim.question import Knobs, Progress, Question, longest_request, name_of, replica_spec
from paceline.sim.workers import Workers


def tune(
    question: Question,
    devices: int,
    progress: Progress = lambda text: None,
    disciplines: Sequence[str] = (),
    workers: Workers | None = None,
) -> list[tuple[Knobs, Deployment, float]]:
    """Knobs for a given number of devices, best first: (knobs, deployment, requests/s of all devices together).

    One knob at a time, twice round, keeping what carries more; the traffic is shared out evenly.
    """
    search = _Tuning(question, devices, progress, workers or Workers())
    best = question.knobs
    where = search.rate([(best, index) for index in range(len(search.bases))])[1]
    for _ in range(2):
        before = best
        for name, values in _knob_values(disciplines).items():
            choices = dict.fromkeys([best, *(replace(best, **{name: value}) for value in values)])
            best = search.rate([(knobs, where) for knobs in choices])[0]
        if best == before:
            break
    ranked = sorted(search.seen.items(), key=lambda item: -item[1])
    return [(knobs, search.bases[index], rate) for (knobs, index), rate in ranked]


class _Tuning:
    def __init__(self, question: Question, devices: int, progress: Progress, workers: Workers) -> None:
        self.question, self.devices, self.progress, self.workers = question, devices, progress, workers
        coefficients = engine(question.engine).coefficients
        self.bases = [one.with_coefficients(coefficients) for one in question.deployments]
        self.seen: dict[tuple[Knobs, int], float] = {}

    def rate(self, choices: Sequence[tuple[Knobs, int]]) -> tuple[Knobs, int]:
        """Rate those that are new, beside each other; the best of all of them, of equals the first."""
        rated = {
            choice: self.workers.submit(rated_by, self.question, self.devices, choice[0], self.bases[choice[1]])
            for choice in choices
            if choice not in self.seen
        }
        for (knobs, index), future in rated.items():
            rate, problem = future.result()
            self.seen[knobs, index] = rate
            name = name_of(self.bases[index])
            self.progress(f"{name}, {knobs.describe()}: {problem or f'{rate:.4g} requests/s'}")
        return max(choices, key=lambda choice: self.seen[choice])


def rated_by(question: Question, devices: int, knobs: Knobs, deployment: Deployment) -> tuple[float, str]:
    """(requests/s of all devices together, why it is none)."""
    groups = devices // deployment.tensor_parallel
    if not groups:
        return 0.0, f"a replica needs {deployment.tensor_parallel} devices"
    try:
        spec = replica_spec(deployment, knobs, longest_request(question.traffic), question.kv_tokens)
        guess = first_guess(question.traffic, spec)
        reached = capacity(question.traffic, spec, question.targets, question.trial_requests, guess, 0.04)
    except PacelineError as error:
        return 0.0, str(error)
    return reached.rate * groups, "" if reached.rate else "does not meet the targets"


def _knob_values(disciplines: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    return {
        "discipline": tuple(disciplines) or ("paceline", "vllm", "sglang", "sarathi"),
        "token_budget": (1024, 2048, 4096, 8192, 16384),
        "max_num_seqs": (64, 128, 256, 512),
        "long_prefill_token_threshold": (0, 512, 2048),
        "order": (None, "priority"),
        "host_gb": (0.0, 64.0),
    }
