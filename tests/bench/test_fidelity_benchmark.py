"""The table of `benchmarks/fidelity.py`, on results that are known."""

from __future__ import annotations

import importlib.util
import json
import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from paceline.sim.cluster import simulate
from paceline.sim.profile import Profile, Serving

PATH = Path(__file__).parents[2] / "benchmarks" / "fidelity.py"
GIVEN = Namespace(
    discipline="paceline",
    threads=1,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_model_len=1024,
    seconds=5.0,
    loads="60",
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


KNOTS = [(1, 0.004), (512, 0.2)]
PROFILE = Profile(
    *("paceline", "0", "m", "cpu", "float32", 32768, 16), KNOTS, 1e-4, 0.0, 1e-6, 0.0, 0.0, 0.0, 9,
    serving=Serving(1e-3, 1e-5, 1e-3, 1e-3, 0.0),
)  # fmt: skip


def taken(slower: float) -> Profile:
    """The profile of a machine so many times slower; what serving adds stays in its part."""
    alone = [(tokens, slower * (seconds + 1e-3) - 1e-3) for tokens, seconds in KNOTS]
    return replace(PROFILE, knots=alone, per_sample=slower * (1e-4 + 1e-5) - 1e-5, per_context=slower * 1e-6)


class Table:
    """Of loads that went as simulated, on a machine so many times slower than in PROFILE."""

    def __init__(self, fidelity: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.fidelity, self.folder, self.capsys = fidelity, folder, capsys
        self.spec = fidelity.spec_of(GIVEN, PROFILE)
        self.rate = 0.6 * fidelity.capacity(self.spec)
        PROFILE.write(folder / "profile.json")

    def __call__(self, slower: float, longer: float = 1.0) -> tuple[int, str, list[float]]:
        """(status, what is printed, errors at the speed it had); first tokens took `longer` than simulated."""
        told = []
        for number in range(PIECES):
            piece = self.fidelity.piece_of(GIVEN, "60", self.rate, number)
            done = simulate(piece, replace(self.spec, times=self.spec.times.scaled(slower)))
            times = {name: getattr(done.records, name).tolist() for name in self.fidelity.METRICS}
            times["ttft"] = [longer * value for value in times["ttft"]]
            told.append({"requests": len(piece), "ok": len(piece), "disturbed": False, **times})
            told[-1]["steps"] = done.usage.steps
        (self.folder / "60.json").write_text(json.dumps({"rate": self.rate, "pieces": told}))
        status, said = self.fidelity.print_table(GIVEN, self.folder), self.capsys.readouterr().out
        return status, said, [float(share) for share in re.findall(r"(?:pass|MISS) +([-+.\d]+)%", said)]


def test_errors_are_told_and_judged(fidelity: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(fidelity, tmp_path, capsys)
    status, said, _ = table(1.0)
    assert status == 0 and said.count("pass") == 9 and "others disturbed 0 of 2 pieces" in said
    status, said, _ = table(1.0, longer=1.2)
    assert status == 1 and said.count("MISS") == 3 and "-16.7%    10% MISS" in said
    status, said, at_its_speed = table(1.3)
    assert status == 1 and said.count("MISS") > 6
    assert len(at_its_speed) == 9 and max(map(abs, at_its_speed)) < 5  # at the speed it had, all is right


def test_two_profiles_count_with_their_mean(
    fidelity: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table(fidelity, tmp_path, capsys)
    taken(1.6).write(tmp_path / "profile-after.json")
    status, said, _ = table(1.3)
    assert status == 0 and said.count("pass") == 9 and "profile-after: 9 shapes" in said


def test_loads_of_other_settings_are_refused(fidelity: ModuleType, tmp_path: Path) -> None:
    PROFILE.write(tmp_path / "profile.json")
    (tmp_path / "60.json").write_text(json.dumps({"rate": 300.0, "pieces": [{"requests": 1}]}))
    with pytest.raises(SystemExit, match="other settings"):
        fidelity.print_table(GIVEN, tmp_path)
