"""The benchmark of the prefix tree runs and says what it promises. Its times are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "prefix_tree.py"
SMALL = ["--prompts", "120", "--tokens", "256", "--operations", "20"]


def output(*flags: str) -> str:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *SMALL, *flags], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_the_json_has_a_median_of_every_operation() -> None:
    result = json.loads(output("--json", "--block-size", "8"))
    assert (result["prompts"], result["tokens"], result["block_size"]) == (120, 256, 8)
    assert (
        set(result["p50"])
        == set(result["p99"])
        >= {
            "match_cached",
            "match_all_but_last_token",
            "match_shared_part",
            "match_inside_block",
            "miss_at_root",
            "open_cached",
            "release_cached",
            "insert",
            "release_inserted",
            "decode_block",
            "evict_one_block",
            "evict_leaf_per_block",
        }
    )
    assert all(value > 0 for value in result["p50"].values())


def test_the_table_names_each_operation() -> None:
    table = output()
    assert "match_cached" in table
    assert "p50" in table
