"""The simulator against measurements of real engines. Data: see the README beside them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core.disciplines import discipline
from paceline.sim.cluster import ReplicaSpec, simulate
from paceline.sim.engines import engine
from paceline.sim.fit import ClosedLoopPoint, fit
from paceline.sim.fit_run import SPREADS, fit_run
from paceline.sim.hardware import hardware
from paceline.sim.latency import Coefficients, Deployment
from paceline.sim.measured_run import MeasuredRun
from paceline.sim.models import model
from paceline.sim.question import Knobs
from paceline.workload.requests import TimedRequest, Workload

DATA = Path(__file__).parent / "data"
WEIGHT_BYTES = {"": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5}


def measured_run(name: str) -> tuple[Workload, np.ndarray, dict[str, Any]]:
    """What was sent, what came of it ([request, (TTFT, TPOT, E2E)] seconds), and the engine's settings."""
    with open(DATA / f"vllm019_{name}_llama31-8b_tp1_requests.csv") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["arrival_s"]))
    meta = json.loads((DATA / f"vllm019_{name}_llama31-8b_tp1_meta.json").read_text())
    requests, found = [], []
    for index, row in enumerate(rows):
        arrival, tokens = float(row["arrival_s"]), int(row["output_tokens"])
        length = int(row["input_tokens"])
        requests.append(TimedRequest(row["request"], arrival, length, tokens, parts=((index + 1, length),)))
        first, last = float(row["first_token_s"]), float(row["last_token_s"])
        found.append((first - arrival, (last - first) / (tokens - 1) if tokens > 1 else np.nan, last - arrival))
    return Workload(requests, name, "recorded"), np.array(found), meta


def errors(name: str, gpu: str, coefficients: Coefficients, kv_tokens: int | None = None) -> dict[str, float]:
    """Simulated over measured mean, minus one."""
    workload, measured, meta = measured_run(name)
    settings = meta["engine_kwargs"]
    deployment = Deployment(model("llama-3.1-8b"), hardware(gpu), coefficients=coefficients)
    budget = settings["max_num_batched_tokens"]
    row = discipline("vllm")
    config = row.configure(
        num_blocks=(kv_tokens or deployment.kv_tokens(0.9, budget)) // 16,
        max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=budget,
        max_model_len=32768,
    )
    records = simulate(workload, ReplicaSpec(config, row, deployment.step_times())).records
    simulated = np.stack([records.ttft, records.tpot, records.e2e], axis=1)
    means = np.nanmean(simulated, axis=0) / np.nanmean(measured, axis=0) - 1
    return dict(zip(("ttft", "tpot", "e2e"), means.tolist(), strict=True))


def test_vllm_on_an_rtx_pro_6000_without_any_fit() -> None:
    off = errors("rtxpro6000", "rtxpro6000", Coefficients())
    assert abs(off["tpot"]) < 0.10
    assert abs(off["e2e"]) < 0.10
    assert abs(off["ttft"]) < 0.20


@pytest.mark.parametrize("name, kv_tokens", [("rtxpro6000", None), ("rtx4090", 41408)])
def test_vllm_on_both_cards_with_coefficients_fitted_on_another_gpu_and_model(name: str, kv_tokens: int | None) -> None:
    off = errors(name, name, engine("vllm").coefficients, kv_tokens)
    assert abs(off["tpot"]) < 0.10
    assert abs(off["e2e"]) < 0.10
    assert abs(off["ttft"]) < 0.10


@pytest.mark.slow
def test_what_is_fitted_to_the_run_on_one_card_predicts_the_run_on_another() -> None:
    """Nothing of the 4090's run is used but its KV capacity and what was sent. vLLM 0.19 schedules asynchronously."""
    workload, measured, meta = measured_run("rtxpro6000")
    run = MeasuredRun.of("rtxpro6000", workload.times(), *workload.lengths(), measured[:, 0], measured[:, 2])
    settings = meta["engine_kwargs"]
    knobs = Knobs("vllm", None, settings["max_num_batched_tokens"], settings["max_num_seqs"])
    believed = engine("vllm").coefficients
    deployment = Deployment(model("llama-3.1-8b"), hardware("rtxpro6000"), coefficients=believed)
    found = fit_run(run, deployment, knobs, overlapped=True)
    assert found.error < 0.02
    for name, kv_tokens, limit in (("rtxpro6000", None, 0.05), ("rtx4090", 41408, 0.10)):
        off = errors(name, name, found.coefficients, kv_tokens)
        assert max(abs(share) for share in off.values()) < limit, (name, off)


def test_efficiencies_are_held_as_near_their_priors_as_they_are_from_one_set_of_points_to_another() -> None:
    sets = [
        fit(found, leave_out=False).coefficients
        for (backend, *_), found in points().items()
        if backend == "vllm" and not found[0].deployment.model.experts
    ]
    for name in ("compute", "memory", "attention", "kv_read"):
        spread = np.std(np.log([getattr(one, name) for one in sets]), ddof=1)
        assert spread == pytest.approx(SPREADS[name], rel=0.1), name


def points() -> dict[tuple[str, str, str, str, str], list[ClosedLoopPoint]]:
    """Sets of one engine and version, device, model and precision.

    TensorRT-LLM is taken to keep K/V in 8 bits where the weights are quantised, as its checkpoints say: each of its six
    quantised sets is predicted better so, by up to half of the error. Others keep them in 16 bits.

    Left out: points of several data-parallel ranks, those whose requests wait longer than they decode (how many
    really ran is not told), and those whose weights could not be in the memory that is named.
    """
    sets: dict[tuple[str, str, str, str, str], list[ClosedLoopPoint]] = {}
    with open(DATA / "silicon_points.csv") as file:
        for row in csv.DictReader(file):
            size = WEIGHT_BYTES[row["gemm_quant"]]
            if "FP8" in row["model_path"]:
                size = 1.0
            if "gpt-oss" in row["model_path"]:
                size = 0.53  # 4 bits, and a scale for every 32
            kv_size = 1.0 if row["backend"] == "trtllm" and row["gemm_quant"] else 2.0
            deployment = Deployment(model(row["model_path"]), hardware(row["system"]), int(row["tp"]), size, kv_size)
            point = ClosedLoopPoint(
                deployment, int(row["isl"]), int(row["osl"]), int(row["concurrency"]), float(row["tpot_ms"]) / 1e3
            )
            queued = float(row["ttft_ms"]) > float(row["tpot_ms"]) * point.output_tokens
            fits = deployment.kv_tokens(0.9, 8192) >= point.input_tokens + point.output_tokens
            if row["dp"] in ("", "0", "1") and fits and not queued:
                key = (row["backend"], row["system"], row["model_path"], row["gemm_quant"], row["backend_version"])
                sets.setdefault(key, []).append(point)
    return {key: found for key, found in sets.items() if len(found) >= 12 and len({p.group for p in found}) >= 4}


@pytest.mark.slow
def test_published_points_are_predicted_from_other_groups_of_points() -> None:
    by_engine: dict[tuple[str, str], list[float]] = {}
    for key, found in points().items():
        by_engine.setdefault(key[:2], []).extend(fit(found).left_out.tolist())
    assert len(by_engine) == 8
    for which, off in by_engine.items():
        assert np.mean(np.abs(off)) <= 0.10, which
        assert abs(np.mean(off)) <= 0.05, which
