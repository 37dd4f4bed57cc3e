"""Rows and files that are no trace: refused with file, line, column and value, or left out and counted."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.app import run
from paceline.workload.requests import WorkloadError
from paceline.workload.traces import ReadOptions, read

CSV = "arrival_s,input_tokens,output_tokens\n"
ROW = {"timestamp": 0, "input_length": 9, "output_length": 4}
SKIP = ReadOptions(skip_bad_rows=True)


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def lines(*rows: Any) -> str:
    return "".join(f"{json.dumps(row) if isinstance(row, dict) else row}\n" for row in rows)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("x,5,6", "arrival_s", "x"),
        ("1e300,5,6", "arrival_s", "1e300"),
        ("inf,5,6", "arrival_s", "inf"),
        ("nan,5,6", "arrival_s", "nan"),
        ("2023-99-16 18:15:46,5,6", "arrival_s", "2023-99-16 18:15:46"),
        ("2,1e300,6", "input_tokens", "1e300"),
        ("2,inf,6", "input_tokens", "inf"),
        ("2,5,99999999", "output_tokens", "99999999"),
        ("2,5,4.5", "output_tokens", "4.5"),
        ("2,,6", "input_tokens", "''"),
        ("2," + "9" * 400 + ",6", "input_tokens", "9999999"),
    ],
)
def test_a_cell_that_makes_no_sense_is_named_or_left_out(
    tmp_path: Path, row: str, column: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, CSV + f"0,5,6\n{row}\n3,7,6\n")
    with pytest.raises(WorkloadError) as caught:
        read(path)
    message = str(caught.value)
    assert f"{path}, line 3: {column} is " in message and value in message and "--bad-rows skip" in message
    left = read(path, SKIP)
    assert [request.prompt_len for request in left.requests] == [5, 7] and sum(left.skipped.values()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(["simulate", "--trace", str(path), "--bad-rows", "skip"]) == 0
    assert "; 1 left out: " in " ".join(capsys.readouterr().out.split())


def test_lines_that_are_no_rows_are_left_out_as_well(tmp_path: Path) -> None:
    later = {**ROW, "timestamp": 9}
    bad = ("not JSON", "[1]", {"timestamp": 1}, {**ROW, "input_length": True}, {**ROW, "timestamp": 10**400})
    found = read(write(tmp_path, lines(ROW, *bad, later), "trace.jsonl"), SKIP)
    assert len(found) == 2 and sum(found.skipped.values()) == len(bad)
    assert read(write(tmp_path, CSV + "0,5,6\n1,5\n2,5,6\n"), SKIP).skipped == {"rows with too few cells": 1}
    talks = [{"prompt": "word " * 9, "output_tokens": length} for length in (4, 0, 10**30, "many")]
    assert len(read(write(tmp_path, json.dumps([*talks, 7, {}]), "talk.json"), SKIP)) == 1
    with pytest.raises(WorkloadError, match="entry 2: output_tokens is 0"):
        read(write(tmp_path, json.dumps(talks[:2]), "talk.json"))


def test_a_trace_of_bad_rows_alone_says_what_was_left_out(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no request in it .2 left out: cells that are no numbers"):
        read(write(tmp_path, CSV + "x,5,6\n1,y,6\n"), SKIP)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window_s": "x"}, "window_s: window_s is 'x', not a number"),
        ({"quantile_probs": [0.0, 2.0]}, "quantile_probs: a share is 2.0"),
        ({"windows": [[0, 1e300, 1, "Gamma", 1, 1]]}, "client 1: the rate of a window is 1e.300"),
        ({"windows": [[0, 1.0]]}, "client 1: is not as ServeGen has it"),
        ({"windows": []}, "no client has windows"),
        ({"length_quantiles": {"0": {"input": [1, 1e300], "output": [1, 2]}}}, "client 1: a length of input is 1e.300"),
        ({"length_quantiles": {"0": {"input": [1], "output": [1, 2]}}}, "client 1: input has 1 lengths"),
        ({"length_quantiles": {}}, "client 1: there are no length_quantiles"),
    ],
)
def test_a_servegen_file_is_checked_before_it_is_drawn_from(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    client = {"client": 1, "windows": [[0, 1.0, 1.0, "Gamma", 1.0, 1.0]]}
    client["length_quantiles"] = {"0": {"input": [1, 9], "output": [1, 9]}}
    whole = {"window_s": 60, "quantile_probs": [0.0, 1.0], "clients": [client]}
    assert len(read(write(tmp_path, json.dumps(whole), "good.json"))) > 20
    for part in (client, whole):
        part.update({name: value for name, value in change.items() if name in part})
    with pytest.raises(WorkloadError, match=message):
        read(write(tmp_path, json.dumps(whole), "bad.json"))


@pytest.mark.parametrize(
    ("name", "format", "looks"),
    [
        ("burstgpt1_head400", "mooncake", "burstgpt"),
        ("burstgpt1_head400", "sharegpt", "burstgpt"),
        ("mooncake_conversation", "csv", "mooncake"),
        ("mooncake_conversation", "servegen", "mooncake"),
        ("servegen_deepseek-r1_h0-12", "bailian", "servegen"),
    ],
)
def test_a_format_that_is_not_the_files_is_told_which_it_is(name: str, format: str, looks: str) -> None:
    with pytest.raises(
        WorkloadError, match=f"this is no {format} trace, it looks like {looks}; leave --trace-format out"
    ):
        read(name, ReadOptions(format=format))


def test_prompts_with_lengths_beside_them_may_be_read_either_way(tmp_path: Path) -> None:
    path = write(tmp_path, lines({**ROW, "prompt": "word " * 8, "output_tokens": 7}), "both.jsonl")
    assert read(path).requests[0].output_len == 4
    assert read(path, ReadOptions(format="sharegpt")).requests[0].output_len == 7


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x00\xd0\xff", b"a,b\x00c\n1,2\n", b"\xff\xfe1,2"])
def test_a_file_that_is_no_text_is_called_that(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(data)
    with pytest.raises(WorkloadError, match=r"this is no text .*; a trace is CSV, JSON or JSON lines, plain or gzip"):
        read(path)


def test_a_broken_gzip_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03nonsense")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read(path)
