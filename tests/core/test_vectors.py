"""Golden vectors: what a discipline decides on a script, step by step, as data.

A file holds `script` (what `paceline replay` plays), `expected` (for some or all steps, by number, some keys of its
line), and `source`: where the vector comes from and how sure it is. Optional: `discipline` (instead of the script's),
`steps` (how many steps there are in all) and `summary` (keys of the last line). Of `refused` and `expired` a list
gives the ids alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.disciplines import DISCIPLINES
from paceline.core.replay import replay

FILES = sorted((Path(__file__).parent / "data" / "disciplines").glob("*.json"))


def as_given(actual: Any, expected: Any) -> Any:
    return sorted(actual) if isinstance(actual, dict) and isinstance(expected, list) else actual


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_discipline_decides_as_the_vector_says(path: Path) -> None:
    vector = json.loads(path.read_text(encoding="utf-8"))
    assert vector["source"] and vector["expected"]
    *lines, last = replay(vector["script"], vector.get("discipline"))
    by_step = {line["step"]: line for line in lines}
    actual, expected = [], []
    for wanted in vector["expected"]:
        assert wanted["step"] in by_step, f"the replay has the steps {list(by_step)}"
        line = by_step[wanted["step"]]
        expected.append(wanted)
        actual.append({key: as_given(line[key], value) for key, value in wanted.items()})
    assert actual == expected
    if "steps" in vector:
        assert len(lines) == vector["steps"]
    for key, value in vector.get("summary", {}).items():
        assert last["summary"][key] == value, key


def test_every_vector_plays_a_row_of_the_table() -> None:
    assert FILES
    for path in FILES:
        vector = json.loads(path.read_text(encoding="utf-8"))
        name = vector.get("discipline") or vector["script"]["config"]["discipline"]
        assert name in DISCIPLINES or name == "triton", path.name
