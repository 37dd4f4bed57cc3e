"""The row `vllm` decides what vLLM V1 decides: golden vectors, worked out from its rules and kept as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.disciplines import discipline
from paceline.core.replay import replay

VECTORS = sorted((Path(__file__).parent / "data" / "vllm").glob("*.json"))


def played(script: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    lines = list(replay({**script, "config": {**script["config"], **config}}))
    return [line for line in lines if "summary" not in line]


@pytest.mark.parametrize("path", VECTORS, ids=[path.stem for path in VECTORS])
def test_the_decisions_are_those_of_the_vector(path: Path) -> None:
    vector = json.loads(path.read_text(encoding="utf-8"))
    lines = played(vector["script"])
    for number, (line, expected) in enumerate(zip(lines, vector["lines"], strict=True)):
        assert {key: line[key] for key in expected} == expected, f"step {number}: {vector['says']}"


def test_there_are_vectors() -> None:
    assert len(VECTORS) >= 15


def test_the_row_takes_the_victims_of_the_queue_policy_it_runs_under() -> None:
    assert type(discipline("vllm").eviction).__name__ == "Newest"
    assert type(discipline("vllm", "priority").eviction).__name__ == "LowestPriority"


def test_k_v_that_a_preempted_step_never_wrote_is_not_hit() -> None:
    """Where the original leaves blocks of a step that was taken back in its index, they are taken out here.

    The victim had been given its fifth and sixth block in the step that took it back, and the sixth was then reused.
    """
    prompt = list(range(1, 25))
    script = {
        "config": {
            "discipline": "vllm", "order": "priority", "block_size": 4, "num_blocks": 8, "max_num_seqs": 4,
            "max_num_batched_tokens": 64, "max_model_len": 64, "long_prefill_token_threshold": 8,
        },
        "requests": [
            {"id": "company", "prompt": [99], "output_len": 1},
            {"id": "victim", "prompt": prompt, "output_len": 1, "priority": 5},
            {"id": "grower", "prompt": list(range(100, 108)), "output_len": 2, "arrival_step": 1},
            {"id": "twin", "prompt": [*prompt, 25], "output_len": 1, "arrival_step": 3},
        ],
    }  # fmt: skip
    lines = played(script)
    assert lines[1]["scheduled"] == [["victim", 8], ["grower", 8]]
    assert lines[2]["scheduled"] == [["grower", 1]] and lines[2]["preempted"] == [["victim", "recompute"]]
    assert lines[3]["cached"]["twin"] == 16
