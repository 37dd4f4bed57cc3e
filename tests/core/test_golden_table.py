"""Golden trace T1: one small workload, and what every discipline makes of it, column by column.

Two long requests that cannot finish together and a short one show prefill stalls, blocking by the head of the line, and
what preemption costs. Rows that decide alike here are told apart by vectors of their own (`test_vectors`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.disciplines import DISCIPLINES
from paceline.core.replay import main, replay
from paceline.core.replay_table import table_row

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden_table.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = GOLDEN["rows"]
PROMPTS = {request["id"]: request["prompt_len"] for request in GOLDEN["script"]["requests"]}


def script(row: dict[str, Any]) -> dict[str, Any]:
    return {**GOLDEN["script"], "config": {**GOLDEN["script"]["config"], **row["settings"]}}


def runs(step: str) -> tuple[str, list[str]]:
    """(who left or came back, what ran, in any order)."""
    moves, _, ran = step.rpartition("; ")
    return moves, sorted(ran.split())


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['discipline']}-{row['settings'].get('how', '')}" for row in ROWS])
def test_every_column_is_as_in_the_table(row: dict[str, Any]) -> None:
    lines = list(replay(script(row), row["discipline"]))
    played = table_row(lines, PROMPTS)
    assert [runs(step) for step in played.steps] == [runs(step) for step in row["steps"]]
    assert played.done == row["done"]
    assert played.recomputed == row["recomputed"]
    summary = lines[-1]["summary"]
    assert summary.get("swapped_out_blocks", 0) == summary.get("swapped_in_blocks", 0) == row.get("swapped", 0)


def test_every_discipline_is_in_the_table() -> None:
    assert {row["discipline"] for row in ROWS} == set(DISCIPLINES)


def test_the_table_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t1.json"
    path.write_text(json.dumps(GOLDEN["script"]), encoding="utf-8")
    assert main([str(path), "--table", "--discipline", "sarathi,vllm-v0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| discipline | s0 | s1 | s2 | s3 | s4 | s5 | s6 | done A/B/C | recomputed tokens |",
        "|---|---|---|---|---|---|---|---|---|---|",
        "| sarathi | A:p7 B:p7 | A:d B:d C:p2 | pre B; A:d | A:d | B:p9 | B:d |  | 3/5/1 | 9 |",
        "| vllm-v0 | A:p7 B:p7 | C:p2 | A:d B:d | pre B; A:d | A:d | B:p9 | B:d | 4/6/1 | 9 |",
    ]
