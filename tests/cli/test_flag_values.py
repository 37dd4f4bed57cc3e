"""Whatever value a flag is given: no traceback, and one line that names the flag, the value and what it may be."""

from __future__ import annotations

import pytest

from paceline.cli.app import run


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 2
    message = capsys.readouterr().err
    assert message.startswith("paceline: ") and message.count("\n") == 1, message
    return message


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
        ("simulate", "--trace-format", "x", "mooncake"),
        ("simulate", "--trace", "nofile", "no trace is called"),
        ("simulate", "--trace", "/no/file.csv", "no such file"),
        ("simulate", "--trace", "/", "a directory"),
        ("bench serve", "--concurrency", "x", "from 1"),
        ("bench serve", "--timeout", "0", "above 0"),
        ("bench sweep", "--good-share", "1.5", "at most 1"),
        ("bench compare", "--rounds", "0", "from 1"),
        ("bench offline", "--scale", "inf", "above 0"),
        ("profile", "--seconds", "-1", "above 0"),
        ("serve", "--port", "abc", "from 0 to 65535"),
        ("serve", "--threads", "x", "at least 1"),
        ("serve", "--seed", "x", "from 0"),
        ("serve", "--max-queue-wait", "soon", "at least 0"),
    ],
)  # fmt: skip
def test_a_number_out_of_range_names_flag_value_and_range(
    command: str, flag: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = ["--trace", "azure2023_conv"] if flag == "--trace-format" else []
    message = said(capsys, *command.split(), flag, value, *trace)
    assert flag in message and value.rstrip("0") in message and allowed in message


def test_a_spread_that_leaves_the_range_is_told_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    message = said(capsys, "simulate", "--input-len", "1000000", "--random-range-ratio", "0.5")
    assert "--input-len: 1000000" in message and "699,050 with a spread of 0.5" in message
