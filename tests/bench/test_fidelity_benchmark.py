"""The table of `benchmarks/fidelity.py`, on results that are known."""

from __future__ import annotations

import importlib.util
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from paceline.sim.cluster import simulate
from paceline.sim.profile import Profile, Serving

PATH = Path(__file__).parents[2] / "benchmarks" / "fidelity.py"
GIVEN = Namespace(
    discipline="paceline", max_num_seqs=8, max_num_batched_tokens=512, max_model_len=1024, seconds=5.0, loads="60"
)


@pytest.fixture
def fidelity() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fidelity", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.QUEUE = 150
    return module


def test_errors_are_told_and_judged(fidelity: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    knots = [(1, 0.004), (512, 0.2)]
    profile = Profile(
        *("paceline", "0", "m", "cpu", "float32", 32768, 16), knots, 1e-4, 0.0, 1e-6, 0.0, 0.0, 0.0, 9,
        serving=Serving(1e-3, 1e-5, 1e-3, 1e-3, 0.0),
    )  # fmt: skip
    profile.write(tmp_path / "profile.json")
    workload, rate = fidelity.workload_of(GIVEN, tmp_path, "60")
    spec = fidelity.spec_of(GIVEN, tmp_path)
    run = {"requests": len(workload), "ok": len(workload), "in_flight": 1.0, "quiet": "quiet", "rate": rate}

    def table(slower: float, p99: float = 1.0) -> tuple[int, str]:
        """(status, what is printed) of a machine so many times slower, whose TTFT p99 is so many times longer."""
        done = simulate(workload, replace(spec, times=spec.times.scaled(slower)))
        found = fidelity.figures(done.records)
        found["ttft"]["p99"] *= p99
        told = {"figures": found, "steps": done.usage.steps, "e2e": done.records.e2e.tolist()}
        (tmp_path / "60.json").write_text(json.dumps({**run, **told}))
        return fidelity.print_table(GIVEN, tmp_path), capsys.readouterr().out

    status, said = table(1.0)
    assert status == 0 and said.count("pass") == 18
    status, said = table(1.0, p99=1.2)
    assert status == 1 and said.count("MISS") == 2 and "-16.7%    10% MISS" in said
    status, said = table(1.3)
    assert status == 1 and said.count("pass") == 9 and "steps took 1.30 times as long" in said
    with pytest.raises(SystemExit, match="of another profile"):
        (tmp_path / "60.json").write_text(json.dumps({**run, "requests": 1}))
        fidelity.print_table(GIVEN, tmp_path)
