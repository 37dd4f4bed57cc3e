"""The benchmark of a step runs and prints what it promises; its figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from paceline.core.disciplines import DISCIPLINES

ROOT = Path(__file__).parents[2]


def test_the_benchmark_prints_its_figures_as_json() -> None:
    ran = subprocess.run(
        [sys.executable, "benchmarks/scheduler_step.py", "--running", "1,8", "--steps", "20", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(ran.stdout)
    assert report["unit"] == "us"
    assert [row["running"] for row in report["results"]] == [1, 8]
    for row in report["results"]:
        assert row["discipline"] in DISCIPLINES
        assert 0 < row["min_us"] <= row["total_us"]
