"""Pictures of replays say what the replay says, and those of the documentation are of this scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from paceline.core.replay import drawn, main, replay
from paceline.core.replay_picture import panel

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
DRAWN = json.loads((Path(__file__).parent / "data" / "pictures.json").read_text(encoding="utf-8"))["pictures"]
SCRIPT = json.loads((PICTURES / "memory.json").read_text(encoding="utf-8"))
PROMPTS = {"A": 7, "B": 7, "C": 7}


def kinds(discipline: str, lane: str) -> list[str]:
    lanes = panel(discipline, replay(SCRIPT, discipline), PROMPTS, 4).lanes
    return [kind for kind, _, _ in lanes[lane].cells.values()]


@pytest.mark.parametrize("picture", DRAWN, ids=lambda picture: picture["script"])
def test_the_documentation_shows_what_the_scheduler_does(picture: dict[str, Any]) -> None:
    script = json.loads((PICTURES / f"{picture['script']}.json").read_text(encoding="utf-8"))
    again = drawn(script, picture["disciplines"])
    assert (PICTURES / f"{picture['script']}.svg").read_text(encoding="utf-8") == again, "draw it again: batching.md"


def test_a_lane_tells_waiting_computing_and_generating_apart() -> None:
    assert kinds("orca", "C") == ["waits"] * 9 + ["prefill"] + ["decode"] * 8
    assert kinds("trtllm-max-utilization", "C")[:4] == ["prefill", "decode", "evicted", "out"]
    assert "holds" in kinds("vllm-v0", "A")


def test_a_cell_says_why_its_request_waits() -> None:
    cells = panel("orca", replay(SCRIPT, "orca"), PROMPTS, 4).lanes["C"].cells
    why = next(line for line in replay(SCRIPT, "orca") if line["step"] == 3)["why"]["C"]
    assert why and cells[3][2] == f"step 3: C waits: {why}"


def test_the_command_writes_a_picture_any_reader_of_svg_takes(tmp_path: Path) -> None:
    target = tmp_path / "out.svg"
    arguments = [str(PICTURES / "memory.json"), "--discipline", "orca,paceline", "--picture", str(target)]
    assert main(arguments) == 0
    titles = [node.text for node in ElementTree.parse(target).iter("{http://www.w3.org/2000/svg}title")]
    assert "step 0: A computes 7 tokens" in titles


def test_names_are_no_markup() -> None:
    script = {"requests": [{"id": "<a&b>", "prompt_len": 3, "output_len": 2}]}
    ElementTree.fromstring(drawn(script, [""]))


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(PICTURES / "memory.json"), "--picture", str(tmp_path / "no" / "out.svg")]) == 2
    assert "out.svg" in capsys.readouterr().err
