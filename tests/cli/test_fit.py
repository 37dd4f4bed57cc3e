"""`paceline fit`: a saved run becomes coefficients that `simulate` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.app import run
from paceline.sim.engines import engine
from paceline.sim.fit_run import simulated
from paceline.workload.export import detail
from tests.sim.test_fit_run import BELIEVED, KNOBS, run_of


def test_a_saved_run_becomes_coefficients_that_a_simulation_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, output = tmp_path / "run.json", tmp_path / "mine.json"
    result.write_text(json.dumps(detail(simulated(run_of(BELIEVED.coefficients), BELIEVED, KNOBS))))
    flags = ["--gpu", "h100", "--model", "llama-3.1-8b", "--max-num-batched-tokens", "2048", "--max-num-seqs", "32"]
    assert run(["fit", str(result), *flags, "--no-overlap", "--output", str(output)]) == 0
    assert "80 requests: TPOT and E2E of each are off by 0." in capsys.readouterr().out
    found = engine(str(output))
    assert found.error < 0.01 and "run.json" in found.source
    traffic = ["--input-len", "64", "--output-len", "8", "--num-prompts", "20"]
    assert run(["simulate", "--engine", str(output), *traffic]) == 0


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--output", "mine.txt"], "a name that ends in .json"),
        (["--weights", "int3"], "--weights"),
        ([], "cannot be read"),
    ],
)
def test_what_cannot_be_fitted_is_said_at_once(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["fit", "missing.json", "--gpu", "h100", "--model", "llama-3.1-8b", *flags]) == 2
    assert message in capsys.readouterr().err
