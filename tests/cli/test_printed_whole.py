"""Nothing that is printed is cut: not through a pipe, not on a narrow terminal, not in the lists of commands."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from paceline.bench.terminal import WholeTable, console
from paceline.cli.app import run

CELLS = ("known tokens fit", "1,234,567", "0.123-0.456", "12.5 ms", "[bold]98.1 ms[/]")


def printed(table: WholeTable, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None, highlight=False).print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", range(30, 90, 3))
def test_a_table_keeps_every_number_whole_at_any_width(width: int) -> None:
    table = WholeTable("what", *"abcd", title="a title", words=(4,))
    for row in ("first", "second"):
        table.add_row(row, *CELLS[1:4], "some words that may wrap")
    lines = printed(table, width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width and "…" not in text and text.count("a title") == 1
    assert all(text.count(cell) == 2 for cell in CELLS[1:4])
    assert all(word in text for word in ("some", "words", "that", "may", "wrap"))
    assert all(
        line.split()[0] in ("a", "what", "first", "second", "some", "words", "that", "may", "wrap") for line in lines
    )


def test_a_table_that_fits_stands_beside_each_other() -> None:
    table = WholeTable("what", *"abcde")
    table.add_row("row", *CELLS)
    assert printed(table, 100) == [
        "what                 a          b            c        d        e",
        "row   known tokens fit  1,234,567  0.123-0.456  12.5 ms  98.1 ms",
    ]


def test_a_terminal_that_is_narrower_than_a_word_still_shows_all_of_it() -> None:
    table = WholeTable("name", "count")
    table.add_row("abcdefghijklmnop", "1,234,567,890")
    shown = "".join("".join(printed(table, 12)).split())
    assert len(re.findall("[a-p0-9]", shown.replace("name", "").replace("count", ""))) == 26


def test_a_pipe_has_room_for_everything(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("word " * 500)
    assert capsys.readouterr().out.count("\n") == 1
    few = "simulate --trace azure2023_conv --num-prompts 60 --goodput ttft:500 --percentiles 50,90,95,99,99.9,99.99"
    assert run(few.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("60 requests, mean" in line for line in lines) == 1  # what is asked is said once
    header = next(line for line in lines if line.startswith("latency"))
    assert header.split()[2:] == ["mean", "p50", "p90", "p95", "p99", "p99.9", "p99.99"]
    assert "…" not in "\n".join(lines)


@pytest.mark.parametrize(
    "line",
    [
        "simulate --discipline static,orca,vllm,paceline,sarathi --num-prompts 20",
        "simulate --num-prompts 60 --tenants 2",
        "disciplines",
        "disciplines orca",
    ],
)
def test_a_terminal_of_60_columns_cuts_nothing(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "60"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    assert run(line.split()) == 0
    lines = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 60 and "…" not in "\n".join(lines)


@pytest.mark.parametrize("path", [[], ["bench"]])
def test_the_lists_of_commands_are_whole(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run([*path, "--help"])
    shown = capsys.readouterr().out
    assert not [line for line in shown.splitlines() if line.endswith("...") and not line.startswith("Usage")]
    run(["serve", "--help"])
    assert "Largest body of a request; default: 16MiB." in capsys.readouterr().out
