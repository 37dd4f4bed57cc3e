"""Coefficients fitted to a run of one's own server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import ModelError, PacelineError
from paceline.sim.engines import EngineProfile, engine
from paceline.sim.fit_run import RunFit, beside, fit_run, simulated
from paceline.sim.hardware import hardware
from paceline.sim.latency import Coefficients, Deployment
from paceline.sim.measured_run import MeasuredRun, read_result
from paceline.sim.models import model
from paceline.sim.question import Knobs
from paceline.workload.export import detail
from paceline.workload.requests import Workload
from tests.sim.samples import azure, short

KNOBS = Knobs("vllm", token_budget=2048, max_num_seqs=32)
BELIEVED = Deployment(model("llama-3.1-8b"), hardware("h100"), coefficients=engine("vllm").coefficients)


def sent() -> Workload:
    return short(azure(80, rate=40.0), 600, 120)


def run_of(truth: Coefficients, workload: Workload | None = None) -> MeasuredRun:
    """A run on a server that is known exactly."""
    workload = workload or sent()
    arrivals, lengths = workload.times(), workload.lengths()
    none = np.ones(len(workload))
    plain = MeasuredRun.of("run", arrivals, *lengths, none, none)
    records = simulated(plain, BELIEVED.with_coefficients(truth), KNOBS)
    return MeasuredRun.of("run", arrivals, *lengths, records.ttft, records.e2e)


def fitted(truth: Coefficients, overlapped: bool = False) -> RunFit:
    return fit_run(run_of(truth), BELIEVED, KNOBS, overlapped=overlapped)


def test_a_host_that_the_device_waits_for_is_found() -> None:
    truth = replace(beside(BELIEVED.coefficients), host=12e-3, host_row=150e-6)
    found = fitted(truth, overlapped=True)
    assert found.error < 0.01
    assert found.coefficients.host == pytest.approx(truth.host, rel=0.1)
    assert found.coefficients.host_row == pytest.approx(truth.host_row, rel=0.25)
    assert found.left_open["host"] < 0.2 < found.left_open["memory"]  # the device is hidden behind it


def test_where_host_and_device_take_turns_the_device_is_found_slower_and_another_is_predicted() -> None:
    truth = replace(BELIEVED.coefficients, memory=0.85, step=1.5e-3)
    found = fitted(truth)
    assert found.error < 0.01
    assert found.coefficients.host == found.coefficients.host_row == 0
    faster, run = replace(BELIEVED, hardware=hardware("b200")), run_of(truth)
    expected = simulated(run, faster.with_coefficients(truth), KNOBS)
    predicted = simulated(run, faster.with_coefficients(found.coefficients), KNOBS)
    assert predicted.tpot.mean() == pytest.approx(expected.tpot.mean(), rel=0.10)


def test_a_fit_is_the_same_every_time_and_says_how_many_requests_it_needs() -> None:
    truth = replace(BELIEVED.coefficients, compute=0.5)
    assert fitted(truth) == fitted(truth)
    with pytest.raises(PacelineError, match="at least 20 answered requests, and has 12"):
        fit_run(run_of(truth, short(azure(12), 100, 20)), BELIEVED, KNOBS, overlapped=True)


def result_of(run: MeasuredRun) -> dict[str, Any]:
    """As a load test of this project saves it."""
    records = simulated(run, BELIEVED, KNOBS)
    return detail(records)


def test_a_saved_run_is_read_under_this_projects_names_and_under_vllms(tmp_path: Path) -> None:
    run = run_of(BELIEVED.coefficients)
    ours = result_of(run)
    theirs = {name: ours[name] for name in ("input_lens", "output_lens", "ttfts", "start_times", "errors")}
    theirs["itls"] = [
        [(e2e - ttft) / 2] * 2 for ttft, e2e in zip(ours["ttfts"], ours["latencies"], strict=True)
    ]  # fmt: skip
    for name, values in (("ours", ours), ("theirs", theirs)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(values))
        read = read_result(path)
        for column in ("prompt_tokens", "output_tokens", "ttft", "e2e", "tpot"):
            np.testing.assert_allclose(getattr(read, column), getattr(run, column))
        np.testing.assert_allclose(read.arrival, run.arrival)


def test_requests_that_failed_are_left_out(tmp_path: Path) -> None:
    values = result_of(run_of(BELIEVED.coefficients))
    values["errors"][3] = "error"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(values))
    assert len(read_result(path).workload) == 79


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not JSON"),
        ("[]", "holds list, not the figures of one run"),
        ("{}", "has no start_times, input_lens, output_lens, ttfts: save the run with --save-detailed"),
        (
            '{"start_times": [0], "input_lens": [1, 2], "output_lens": [1], "ttfts": [1], "latencies": [1]}',
            "do not belong together",
        ),
        (
            '{"start_times": [0], "input_lens": [1], "output_lens": [0], "ttfts": [1], "latencies": [1]}',
            "no request was answered",
        ),
    ],
)
def test_a_result_that_cannot_be_fitted_gets_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ModelError) as error:
        read_result(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_fitted_coefficients_stand_where_an_engine_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    mine = EngineProfile("mine", replace(Coefficients(), host=3e-3), 0.02, "80 requests")
    mine.write(path)
    assert engine(str(path)) == mine
    for text, message in (
        ("{}", "is not a paceline-coefficients-1 file"),
        ('{"format": "paceline-coefficients-1", "coefficients": {"memory": -1}}', "coefficient memory"),
        ('{"format": "paceline-coefficients-1", "name": "x"}', "coefficients"),
    ):
        path.write_text(text)
        with pytest.raises(ModelError, match=message):
            engine(str(path))
