"""`paceline disciplines`, knobs and the file of settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.settings_file import parse_knobs, read_settings
from paceline.core.describe import POINTS, explain, explain_order
from paceline.core.disciplines import DISCIPLINES
from paceline.core.orders import ORDERS
from paceline.engine.config import EngineConfig
from paceline.errors import ConfigError
from paceline.server.config import ServerConfig


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "paceline", *arguments], capture_output=True, text=True, timeout=120)


def test_the_table_has_every_row_and_every_order() -> None:
    found = json.loads(run("disciplines", "--json").stdout)
    assert [row["name"] for row in found["disciplines"]] == list(DISCIPLINES)
    assert all(row[key] for row in found["disciplines"] for key in ("after", *POINTS))
    assert {row["name"] for row in found["orders"]} == set(ORDERS)
    assert all(row["bound"] and row["words"] for row in found["orders"])
    shown = run("disciplines").stdout
    assert all(f"\n{name} " in shown for name in DISCIPLINES)


def test_one_row_is_explained_with_its_knobs_and_what_goes_wrong() -> None:
    result = run("disciplines", "orca")
    assert result.returncode == 0
    for part in ("after Orca", "whole life", 'reserve="prompt+max_new"', "it takes prompts whole", "reservation waste"):
        assert part in " ".join(result.stdout.split()), part
    assert "triton" in run("disciplines", "triton").stdout


@pytest.mark.parametrize("name", list(DISCIPLINES))
def test_every_row_explains_all_of_itself(name: str) -> None:
    row = DISCIPLINES[name]
    told = json.loads(json.dumps(explain(row)))
    shown = {knob for choice in told["choices"].values() for knob in choice["knobs"]}
    assert shown == set(row.knobs())
    assert all(choice["words"] for choice in told["choices"].values())
    assert set(row.fixed) == set(told["fixed"]) and told["settings"]["block_size"]


def test_an_order_is_explained_with_its_knobs_their_ranges_and_its_bound() -> None:
    shown = " ".join(run("disciplines", "priority").stdout.split())
    for part in ("Smaller priority first", "--knob age=0.0 (a number of at least 0)", "aging", "L * age seconds"):
        assert part in shown, part
    for name in ORDERS:
        told = json.loads(json.dumps(explain_order(name)))
        assert told["words"] and told["bound"] and set(told["allowed"]) == set(told["knobs"])


def test_an_unknown_row_is_one_line() -> None:
    result = run("disciplines", "chaos")
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and "vllm" in result.stderr
    assert "triton; fcfs" in result.stderr


def test_disciplines_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom paceline.cli.app import run\nrun(['disciplines'])\n"
        "print(sorted({'torch', 'transformers', 'fastapi', 'zmq', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stderr.strip() == "[]"


# -- knobs and settings from a file ------------------------------------------------------------------------------------


def test_knobs_are_json_or_words() -> None:
    knobs = parse_knobs(["growth=16", "hold-back=0.5", "front=false", "buckets=[128, 512]", "how=swap", "most=null"])
    assert knobs == {
        "growth": 16, "hold_back": 0.5, "front": False, "buckets": (128, 512), "how": "swap", "most": None,
    }  # fmt: skip
    for wrong in (["growth"], ["=3"], ["a b=3"], ["growth=1", "growth=2"]):
        with pytest.raises(ConfigError, match="--knob"):
            parse_knobs(wrong)


def read(path: Path) -> dict:
    return read_settings(str(path), (EngineConfig, ServerConfig), {"log_level": str})


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "model: some\nmax-num-seqs: 8\nkv_cache_memory: 64MiB\nwatermark: 1\napi_key: [a, b]\nlog_level: debug\n"
        "enable_prefix_caching: false\nknobs: {growth: 4, buckets: [1, 2]}\n"
    )
    (tmp_path / "a.toml").write_text(
        'model = "some"\nmax-num-seqs = 8\nkv_cache_memory = "64MiB"\nwatermark = 1\napi_key = ["a", "b"]\n'
        'log_level = "debug"\nenable_prefix_caching = false\n[knobs]\ngrowth = 4\nbuckets = [1, 2]\n'
    )
    assert read(tmp_path / "a.yaml") == read(tmp_path / "a.toml") == {
        "model": "some", "max_num_seqs": 8, "kv_cache_memory": 2**26, "watermark": 1.0, "api_keys": ("a", "b"),
        "log_level": "debug", "enable_prefix_caching": False, "knobs": {"growth": 4, "buckets": (1, 2)},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.yaml", "no_such: 1", "no_such"),
        ("a.yaml", "max_num_seqs: many", "a whole number"),
        ("a.yaml", "max_num_seqs: true", "a whole number"),
        ("a.yaml", "model: 5", "a text"),
        ("a.yaml", "model:", "a text"),
        ("a.yaml", "enable_prefix_caching: 'no'", "true or false"),
        ("a.yaml", "kv_cache_memory: lots", "a size"),
        ("a.yaml", "kv_cache_memory: 5", "5 alone is 5 bytes"),
        ("a.yaml", "knobs: 3", "a table of knobs"),
        ("a.yaml", "api_keys: [1]", "a list of keys"),
        ("a.yaml", "- 1", "a table of settings"),
        ("a.yaml", "a: [", "YAML"),
        ("a.yaml", "a: !!python/object:os.system {}", "YAML"),
        ("a.toml", "a = ", "TOML"),
        ("a.ini", "a = 1", "*.yaml"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, name: str, text: str, part: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert part in str(caught.value) and str(path) in str(caught.value)
    assert read_empty(tmp_path) == {}


def read_empty(folder: Path) -> dict:
    path = folder / "empty.yaml"
    path.write_text("# nothing\n")
    return read(path)


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("discipline: chaos\nmax_num_seqs: 0\nknobs: {window: no}\n")
    for flags, part in (
        ([], "chaos"),
        (["--discipline", "orca"], "window"),
        (["--discipline", "orca", "--knob", "window=1"], "--max-num-seqs"),
        (["--discipline", "orca", "--knob", "window=1", "--max-num-seqs", "2", "--watermark", "0.1"], "whole lives"),
    ):
        result = run("serve", "--config", str(path), "--port", "0", *flags)
        assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
        assert part in result.stderr, result.stderr
