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
PIECES = 2


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
    spec = fidelity.spec_of(GIVEN, profile)
    rate = 0.6 * fidelity.capacity(spec)
    pieces = [fidelity.piece_of(GIVEN, "60", rate, number) for number in range(PIECES)]

    def table(slower: float, between: float, longer: float = 1.0) -> tuple[int, str]:
        """(status, what is printed) of a machine so many times slower than in its profile, and than between the pieces,
        where first tokens take so many times longer."""
        told = []
        for number, piece in enumerate(pieces):
            done = simulate(piece, replace(spec, times=spec.times.scaled(slower)))
            records = done.records
            times = {name: getattr(records, name).tolist() for name in fidelity.METRICS}
            times["ttft"] = [longer * value for value in times["ttft"]]
            told.append({"requests": len(piece), "ok": len(piece), "disturbed": False, **times})
            told[-1]["steps"] = done.usage.steps
            # What serving adds is not scaled where steps are timed between the pieces.
            alone = [(tokens, between * (seconds + 1e-3) - 1e-3) for tokens, seconds in knots]
            now = replace(profile, knots=alone, per_sample=between * (1e-4 + 1e-5) - 1e-5, per_context=between * 1e-6)
            now.write(tmp_path / f"60-{number}.json")
        (tmp_path / "60.json").write_text(json.dumps({"rate": rate, "pieces": told}))
        return fidelity.print_table(GIVEN, tmp_path), capsys.readouterr().out

    status, said = table(1.0, 1.0)
    assert status == 0 and said.count("pass") == 27
    status, said = table(1.3, 1.3)
    assert status == 0 and 18 <= said.count("pass") < 27 and "others disturbed 0 of 2 pieces" in said
    status, said = table(1.0, 1.0, longer=1.2)
    assert status == 1 and said.count("MISS") == 9 and "-16.7%    10% MISS" in said
    status, said = table(1.3, 1.0)  # at the speed it had, all is right
    assert status == 1 and said.count("MISS") > 6 and said.count("pass") >= 9
    with pytest.raises(SystemExit, match="other settings"):
        (tmp_path / "60.json").write_text(json.dumps({"rate": 3 * rate, "pieces": [{"requests": 1}]}))
        (tmp_path / "60-0.json").write_text((tmp_path / "profile.json").read_text())
        fidelity.print_table(GIVEN, tmp_path)
