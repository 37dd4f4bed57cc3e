"""Whatever value a flag is given: no traceback, and one line that names the flag, the value and what it may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.app import run
from paceline.cli.limits import LimitFlags, ReportedFlags
from paceline.cli.outputs import OutputFlags

from .refused import said


@pytest.mark.parametrize(
    ("command", "flag", "value", "allowed"),
    [
        ("simulate", "--input-len", "0", "from 1 to 1,048,576"),
        ("simulate", "--input-len", "10000000", "from 1 to 1,048,576"),
        ("simulate", "--random-range-ratio", "3", "below 1"),
        ("simulate", "--tenants", "0", "a number from 1"),
        ("simulate", "--tenants", "a:0", "weights above 0"),
        ("simulate", "--burstiness", "0", "from 0.001"),
        ("simulate", "--prefix-share", "2", "from 0 to 1"),
        ("simulate", "--scale-lengths", "0", "above 0"),
        ("simulate", "--scale-lengths", "1000000", "at most 1.311e+05"),
        ("simulate", "--turns", "0", "from 1"),
        ("simulate", "--max-tokens", "10", "at least 192"),
        ("simulate", "--seed", "-1", "from 0"),
        ("simulate", "--seed", "x", "from 0"),
        ("simulate", "--time-scale", "0", "above 0"),
        ("simulate", "--time-scale", "-1", "above 0"),
        ("simulate", "--think-time", "nan", "from 0"),
        ("simulate", "--mix", "1:0:5", "tokens from 1"),
        ("simulate", "--mix", "", "WEIGHT:INPUT:OUTPUT"),
        ("simulate", "--ramp", "1:2:0", "above 0"),
        ("simulate", "--ramp", "nan:2:9", "FROM:TO:SECONDS"),
        ("simulate", "--request-rate", "-1", "above 0"),
        ("simulate", "--trace", "nofile", "no trace is called"),
        ("simulate", "--trace", "/no/file.csv", "no such file"),
        ("simulate", "--trace", "/", "a directory"),
        ("bench serve", "--concurrency", "x", "from 1"),
        ("bench serve", "--timeout", "0", "above 0"),
        ("bench sweep", "--good-share", "1.5", "at most 1"),
        ("bench compare --disciplines vllm", "--serve-args", "'x", "as in a shell"),
        ("bench compare", "--disciplines", "x", "one of paceline"),
        ("bench compare", "--rounds", "0", "from 1"),
        ("bench offline", "--scale", "inf", "above 0"),
        ("profile", "--seconds", "-1", "above 0"),
        ("profile", "--output", "/no/folder/a.json", "a folder that exists"),
        ("plan", "--ttft-p99", "500", "500ms (which is 0.5s)"),
        ("plan", "--e2e-p99", "soon", "such as 500ms"),
        ("plan", "--target", "ttft:p95:x", "such as 500ms"),
        ("plan", "--target", "ttft:95", "METRIC:pPERCENT:LIMIT"),
        ("plan", "--trial-requests", "60", "from 100"),
        ("plan", "--html", "/no/folder/a.html", "a folder that exists"),
        ("plan", "--result", "/", "this is a folder"),
        ("simulate", "--fault", "nan:0:dies", "SECONDS:REPLICA:dies"),
        ("simulate", "--fault", "1:7:dies", "a replica from 0 to 0"),
        ("simulate", "--bad-rows", "x", "refuse or skip"),
        ("simulate", "--trace-format", "x", "mooncake"),
        ("simulate", "--price", "-1", "from 0"),
        ("simulate", "--profile", "nofile", "No such file"),
        ("simulate", "--model", "/no/config.json", "No such file"),
        ("simulate --profile nofile", "--gpu", "h100", "left out beside --profile"),
        ("simulate --profile nofile", "--tensor-parallel", "2", "left out beside --profile"),
        ("simulate", "--ttft-p99", "0s", "above 0"),
        ("simulate", "--goodput", "ttft:fast", "MILLISECONDS"),
        ("simulate", "--html", "/no/folder/a.html", "a folder that exists"),
        ("simulate", "--result", "/no/folder/a.json", "a folder that exists"),
        ("simulate --save-result", "--result-dir", "/no/folder", "a folder that exists"),
        ("bench serve", "--result", "/no/folder/a.json", "a folder that exists"),
        ("bench serve", "--html", "/no/folder/a.html", "a folder that exists"),
        ("bench offline", "--json", "/no/folder/a.json", "a folder that exists"),
        ("serve", "--port", "abc", "from 0 to 65535"),
        ("serve", "--threads", "x", "at least 1"),
        ("serve", "--seed", "x", "from 0"),
        ("serve", "--max-queue-wait", "soon", "at least 0"),
    ],
)  # fmt: skip
def test_a_number_out_of_range_names_flag_value_and_range(
    command: str, flag: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = said(capsys, *command.split(), flag, value)
    assert flag in message and value.rsplit(":", 1)[-1].rstrip("0") in message and allowed in message


def test_a_spread_that_leaves_the_range_is_told_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    message = said(capsys, "simulate", "--input-len", "1000000", "--random-range-ratio", "0.5")
    assert "--input-len: 1000000" in message and "699,050 with a spread of 0.5" in message


def test_what_does_not_fit_is_told_with_sizes_and_the_mend(capsys: pytest.CaptureFixture[str]) -> None:
    message = said(capsys, "simulate", "--model", "llama-3.1-70b")
    for part in ("141.1 GB", "80 GB", "0.0629 GB", "--tensor-parallel", "--gpu", "--weights"):
        assert part in message


def test_targets_mean_the_same_however_they_are_spelled() -> None:
    spelled = [
        LimitFlags(goodput=["ttft:500 tpot:50"]),
        LimitFlags(goodput=["ttft:0.5s,tpot:50ms"]),
        LimitFlags(ttft_p99="500ms", tpot_p99="0.05s"),
        LimitFlags(target=["ttft:p99:500ms", "tpot:p99:50ms"]),
    ]
    assert {tuple(sorted(one.limits())) for one in spelled} == {(("tpot", 99.0, 0.05), ("ttft", 99.0, 0.5))}
    assert LimitFlags(goodput=["ttft:500"], target=["ttft:p95:300ms"]).targets() == {"ttft": 0.3}
    assert 95.0 in ReportedFlags(target=["ttft:p95:1s"], percentiles="50").percents()


def test_figures_go_where_either_spelling_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("simulate", "--num-prompts", "5", "--output-len", "4")
    assert run([*few, "--rate", "3", "--result", str(tmp_path / "a.json"), "--detailed"]) == 0
    assert run([*few, "--request-rate", "3", "--save-detailed", "--result-dir", str(tmp_path)]) == 0
    one, other = sorted(tmp_path.iterdir(), key=lambda path: path.name != "a.json")
    assert "ttfts" in json.loads(one.read_text()) and "ttfts" in json.loads(other.read_text())
    assert OutputFlags(result=Path("x"), save_result=True).file(lambda: "y") == Path("x")
    assert OutputFlags(result_filename="z").file(lambda: "y") == Path("z") and OutputFlags().file(lambda: "y") is None


def test_a_plan_without_a_target_says_which_flags_give_one(capsys: pytest.CaptureFixture[str]) -> None:
    message = said(capsys, "plan", "--num-prompts", "5")
    assert message.startswith("paceline: a plan needs a target; give --ttft-p99 500ms") and "none" not in message
