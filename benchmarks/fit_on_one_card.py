"""Fit coefficients to vLLM's run on one card, and predict its run on another.

    python benchmarks/fit_on_one_card.py

Runs: see tests/sim/data. Of the second card's run only its KV capacity and what was sent are used. Printed: simulated
over measured, with the host beside the device and with the two taking turns.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from paceline.sim.engines import engine
from paceline.sim.fit_run import fit_run, simulated
from paceline.sim.hardware import hardware
from paceline.sim.latency import Coefficients, Deployment
from paceline.sim.measured_run import MeasuredRun
from paceline.sim.models import model
from paceline.sim.question import Knobs

DATA = Path(__file__).parent.parent / "tests/sim/data"
CARDS = {"rtxpro6000": None, "rtx4090": 41408}  # KV tokens, where recorded


def measured(card: str) -> tuple[MeasuredRun, Knobs]:
    """A shipped run, and the server's settings."""
    with open(DATA / f"vllm019_{card}_llama31-8b_tp1_requests.csv") as file:
        rows = list(csv.DictReader(file))
    due, first, last = (
        np.array([float(row[name]) for row in rows]) for name in ("arrival_s", "first_token_s", "last_token_s")
    )
    lengths = ([int(row[name]) for row in rows] for name in ("input_tokens", "output_tokens"))
    settings = json.loads((DATA / f"vllm019_{card}_llama31-8b_tp1_meta.json").read_text())["engine_kwargs"]
    knobs = Knobs("vllm", None, settings["max_num_batched_tokens"], settings["max_num_seqs"])
    return MeasuredRun.of(card, due, *lengths, first - due, last - due), knobs


def deployment(card: str, coefficients: Coefficients) -> Deployment:
    return Deployment(model("llama-3.1-8b"), hardware(card), coefficients=coefficients)


def show(title: str, coefficients: Coefficients) -> None:
    """A line for each card."""
    for card, kv_tokens in CARDS.items():
        run, knobs = measured(card)
        found = simulated(run, deployment(card, coefficients), knobs, kv_tokens)
        text = f"{title:24s} {card:12s}"
        for name in ("ttft", "tpot", "e2e"):
            ours, theirs = getattr(found, name), getattr(run, name)
            tail = np.percentile(ours, 99) / np.percentile(theirs, 99) - 1
            text += f"  {name} mean {ours.mean() / theirs.mean() - 1:+6.1%} p99 {tail:+6.1%}"
        print(text, flush=True)


def main() -> None:
    believed = engine("vllm").coefficients
    show("nothing fitted", believed)
    card = next(iter(CARDS))
    run, knobs = measured(card)
    for title, overlapped in (("host beside the device", True), ("host and device in turn", False)):
        found = fit_run(run, deployment(card, believed), knobs, overlapped=overlapped)
        show(title, found.coefficients)
        left = ", ".join(
            f"{name} {getattr(found.coefficients, name):.3g} ({share:.0%})" for name, share in found.left_open.items()
        )
        print(f"  {found.error:.2%} of each TPOT and E2E; coefficients (share of the prior's spread left): {left}")


if __name__ == "__main__":
    main()
