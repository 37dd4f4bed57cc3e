"""Traces: every format people bring is read, and what makes no sense is said, with the line, or counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from paceline.workload.arrivals import dispersion, gap_cv
from paceline.workload.requests import WorkloadError, check
from paceline.workload.synthetic import shared_tokens
from paceline.workload.traces import DATA, ReadOptions, read, shipped

SKIP = ReadOptions(skip_bad_rows=True)


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", shipped())
def test_shipped_traces_are_read_checked_and_attributed(name: str) -> None:
    workload = check(read(name))
    assert len(workload) > 50
    assert workload.timed
    assert workload.attribution


def test_shipped_traces_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 300_000


def test_the_azure_traces_have_their_published_shape() -> None:
    conversation, code = read("azure2023_conv"), read("azure2023_code")
    assert np.mean([request.prompt_len for request in conversation.requests]) == pytest.approx(1242, abs=1)
    assert gap_cv(conversation.times()) == pytest.approx(1.07, abs=0.02)
    assert gap_cv(code.times()) == pytest.approx(14.2, abs=0.2)
    assert dispersion(code.times(), 60.0) > 100


def test_block_hashes_are_shared_prefixes() -> None:
    workload = read("mooncake_arxiv_mixed_93")
    total = sum(request.prompt_len for request in workload.requests)
    assert shared_tokens(workload) / total == pytest.approx(0.366, abs=0.002)


def test_ticks_are_noticed_and_can_be_spread() -> None:
    raw = read("mooncake_conversation")
    assert "ticks" in raw.notes[0]
    spread = read("mooncake_conversation", ReadOptions(spread_ticks=True))
    assert not spread.notes
    assert dispersion(spread.times(), 1.0) < 0.5 * dispersion(raw.times(), 1.0)


def test_failed_requests_of_burstgpt_are_counted() -> None:
    workload = read("burstgpt1_head400")
    assert len(workload) == 383
    assert sum(workload.skipped.values()) == 17
    assert "17 left out" in workload.describe()


def test_azures_own_columns_are_read(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    text = head + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    workload = read(write(tmp_path, text))
    assert workload.times().tolist() == pytest.approx([0, 4.314579], abs=1e-4)
    assert workload.requests[1].output_len == 109


def test_burstgpts_eight_columns_are_read_by_name(tmp_path: Path) -> None:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    workload = read(write(tmp_path, head + "5,s1,2.0,GPT-4,10,20,30,API log\n9,s1,2.0,GPT-4,30,0,30,API log\n"))
    assert (workload.requests[0].tenant, workload.requests[0].session) == ("GPT-4", "s1")
    assert len(workload) == 1
    assert sum(workload.skipped.values()) == 1


def test_gzip_is_read_whatever_the_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens\n0,5,6\n"))
    assert read(path).requests[0].output_len == 6


def test_bailian_is_in_seconds_and_small_blocks(tmp_path: Path) -> None:
    row = {"chat_id": 3, "timestamp": 1.5, "input_length": 40, "output_length": 2, "hash_ids": [1, 2, 3], "turn": 1}
    later = {**row, "chat_id": 4, "timestamp": 4.0}
    workload = read(write(tmp_path, f"{json.dumps(row)}\n{json.dumps(later)}\n", "trace.jsonl"))
    assert workload.times().tolist() == [0, 2.5]
    assert workload.requests[0].parts == ((1, 16), (2, 16), (3, 8))


def test_sharegpt_gives_questions_and_answer_lengths(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "word " * 40}, {"from": "gpt", "value": "reply " * 20}]
    text = json.dumps([{"conversations": talk}, {"conversations": talk[:1]}])
    workload = read(write(tmp_path, text, "sharegpt.json"), ReadOptions(count_tokens=lambda text: len(text.split())))
    assert [(request.prompt_len, request.output_len) for request in workload.requests] == [(40, 20)]
    assert not workload.timed
    assert workload.skipped == {"conversations without a question and an answer": 1}


def test_lengths_without_a_tokenizer_are_called_estimates(tmp_path: Path) -> None:
    workload = read(write(tmp_path, '{"prompt": "twenty characters ..", "output_tokens": 7}\n', "prompts.jsonl"))
    assert workload.requests[0].prompt_len == 5
    assert "estimates" in workload.notes[0]


def test_servegen_draws_the_rate_of_its_clients() -> None:
    workload = read("servegen_deepseek-r1_h0-12", ReadOptions(duration=600.0, seed=1))
    assert len(workload) / 600 == pytest.approx(14.8, rel=0.15)
    assert len({request.tenant for request in workload.requests}) > 15
    again = read("servegen_deepseek-r1_h0-12", ReadOptions(duration=600.0, seed=1))
    assert again.requests == workload.requests


CSV = "arrival_s,input_tokens,output_tokens\n"


BLOCK = '{"timestamp": 0, "input_length": 9, "output_length": 4, %s}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty|no request"),
        ("arrival_s,output_tokens\n0,5\n", "line 1: there is no column of input tokens; the columns are"),
        (CSV, "no request"),
        (CSV + "0,5,6\n-1,5,6\n", "line 3: arrival_s -1 is negative"),
        (CSV + "5,5,6\n1,5,6\n", "line 3: arrival_s 1 comes after a later time"),
        (CSV + "0,0,6\n", "line 2: 0 tokens in and 6 out"),
        (CSV + "0,5,x\n", "line 2: output_tokens is 'x', not a number"),
        (CSV + "0,5,1.5\n", "line 2: output_tokens is '1.5', not a whole number"),
        (CSV + "nan,5,6\n", "line 2: arrival_s is 'nan', not a finite number"),
        (CSV + "0,5\n", "line 2: 2 cells, and the header has 3"),
        ('{"timestamp": 0, "input_length": 9}\n', "line 1: there is no output_length"),
        (
            '{"timestamp": 0, "input_length": 900, "output_length": 4, "hash_ids": [1]}\n',
            "1 blocks of 512 tokens cover 512 of 900",
        ),
        (BLOCK % '"hash_ids": ["x"]', "line 1: hash_ids is .* not a list of whole numbers"),
        (BLOCK % '"hash_ids": 7', "line 1: hash_ids is '7', not a list of whole numbers"),
        (BLOCK % '"turn": "second"', "line 1: turn is 'second', not a number"),
        (BLOCK % '"priority": 1.5', "line 1: priority is 1.5, not a whole number"),
        ('{"timestamp": 0,\n', "line 1: "),
        ('{"colour": "red"}\n', "no input_length and no prompt"),
        ('[{"id": 1}]', "no prompt and no conversations"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        read(write(tmp_path, text))


def test_bad_rows_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    workload = read(write(tmp_path, CSV + "0,5,6\n-1,5,6\n2,0,6\n1,5,6\n3,5,-2\n0.5,7,7\n9,5,6\n"), SKIP)
    assert [request.prompt_len for request in workload.requests] == [5, 5, 5]
    assert workload.skipped == {
        "negative times": 1,
        "rows with 0 tokens": 1,
        "negative tokens": 1,
        "times out of order": 1,
    }


def test_a_name_that_is_no_trace_lists_those_there_are() -> None:
    with pytest.raises(WorkloadError, match="azure2023_code, azure2023_conv"):
        read("azure2024")
    with pytest.raises(WorkloadError, match="no such file"):
        read("/nowhere/trace.csv")
    with pytest.raises(WorkloadError, match="trace format"):
        read("azure2023_code", ReadOptions(format="excel"))
