"""A flag that is typed does something, or is refused with the flag that leaves it nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from paceline.bench.compare import by_discipline
from paceline.cli.app import app, run
from paceline.cli.idle_flags import refuse_idle
from paceline.cli.idle_table import IDLE
from paceline.cli.limits import LimitFlags
from paceline.core.disciplines import DISCIPLINES
from paceline.errors import ConfigError

from .refused import said

TRACE = "--trace azure2023_conv"
SCRIPT = json.dumps({"requests": [{"id": "a", "prompt_len": 3, "output_len": 2}]})


@pytest.mark.parametrize(
    ("line", "idle", "company"),
    [
        (f"simulate {TRACE} --input-len 5", "--input-len", "beside --trace"),
        (f"simulate {TRACE} --output-len 5", "--output-len", "beside --trace"),
        (f"simulate {TRACE} --turns 5", "--turns", "beside --trace"),
        (f"simulate {TRACE} --mix real", "--mix", "beside --trace"),
        ("simulate --mix 1:20:5 --output-len 64", "--output-len", "beside --mix"),
        ("simulate --mix real --random-range-ratio 0.5", "--random-range-ratio", "--mix real"),
        ("simulate --time-scale 2", "--time-scale", "without --trace"),
        ("simulate --bad-rows skip", "--bad-rows", "without --trace"),
        (f"simulate {TRACE} --time-scale 2 --rate 4", "--time-scale", "beside --request-rate"),
        (f"simulate {TRACE} --time-scale 2 --arrivals poisson", "--time-scale", "--arrivals poisson"),
        (f"simulate {TRACE} --burstiness 2", "--burstiness", "the times of azure2023_conv"),
        (f"simulate {TRACE} --block-size 16", "--block-size", "names no blocks"),
        (f"simulate {TRACE} --trace-start 9", "--trace-start", "logged"),
        ("simulate --ramp 1:2:5 --request-rate 4", "--request-rate", "beside --ramp"),
        ("simulate --ramp 1:2:5 --arrivals poisson", "--ramp", "--arrivals poisson"),
        ("simulate --arrivals constant --burstiness 4", "--burstiness", "--arrivals constant"),
        ("simulate --request-rate inf --burstiness 4", "--burstiness", "--request-rate inf"),
        ("simulate --prefixes 4", "--prefixes", "without --prefix-len"),
        (f"simulate {TRACE} --dataset-name random", "--trace", "made up"),
        ("simulate --dataset-name sharegpt", "--trace-format", "without --trace"),
        ("simulate --think-time 4", "--think-time", "without --turns"),
        ("simulate --router prefix", "--router", "without --replicas"),
        ("simulate --price 2", "--price", "paceline plan"),
        ("simulate --gpu h100,h200", "--gpu", "paceline plan"),
        ("simulate --disk-bandwidth 2", "--disk-bandwidth", "without --disk-memory"),
        ("simulate --label x --discipline orca,vllm", "--label", "--discipline orca,vllm"),
        ("simulate --result a.json --result-filename b.json", "--result-filename", "beside --result"),
        ("bench serve --concurrency 2 --request-rate 4", "--request-rate", "beside --concurrency"),
        ("bench serve --concurrency 2 --max-concurrency 4", "--max-concurrency", "beside --concurrency"),
        ("bench serve --text-prompts --vocab-size 90", "--vocab-size", "beside --text-prompts"),
        ("bench serve --endpoint chat --first-token 90", "--first-token", "--endpoint chat"),
        ("bench compare --base-url http://x", "--base-url", "--base-urls"),
        ("bench compare --base-urls http://x --serve-args x", "--serve-args", "without --disciplines"),
        ("bench compare --base-urls http://x --disciplines orca", "--base-urls", "beside --disciplines"),
        ("bench sweep --rates 1,2 --start-rate 4", "--start-rate", "beside --rates"),
        ("bench sweep --request-rate 4", "--request-rate", "--rates"),
        ("bench sweep --concurrency 4", "--concurrency", "a sweep is over rates"),
        ("bench offline --workload w1 --streams 3", "--streams", "--workload w1"),
        ("bench offline --context 3", "--context", "--workload w1"),
        ("bench offline --workload continuous-vs-static --output-len 3", "--output-len", "--workload continuous"),
        ("bench offline --workload decode --streams 3 --requests 4", "--requests", "beside --streams"),
        ("plan --ttft-p99 1s --gpus 4", "--gpus", "without --tune"),
        ("plan --ttft-p99 1s --tune --no-what-if", "--no-what-if", "beside --tune"),
        ("profile --no-serving --rounds 2", "--rounds", "--no-serving"),
        ("serve --num-blocks 9 --kv-cache-memory 1GiB", "--kv-cache-memory", "beside --num-blocks"),
        ("serve --kv-load always", "--kv-load", "without --swap-space"),
        ("serve --no-enable-chunked-prefill --long-prefill-token-threshold 9", "--long-prefill", "--no-enable"),
        ("bench offline --num-blocks 9 --gpu-memory-utilization 0.5", "--gpu-memory", "beside --num-blocks"),
        ("bench offline --workload continuous-vs-static --discipline static", "--discipline", "the other side"),
        ("bench compare --disciplines vllm --serve-args --discipline=orca", "--serve-args", "without --discipline"),
        ("simulate --discipline orca --long-prefill-token-threshold 9", "--long-prefill-token-threshold", "under orca"),
        ("disciplines --order sjf", "--order", "without NAME"),
        ("simulate --goodput ttft:5 --goodput ttft:6", "--goodput: 'ttft:6'", "beside --goodput ttft:5"),
        ("plan --ttft-p99 5s --target ttft:p99:6s", "--target", "beside --ttft-p99 5s"),
    ],
)  # fmt: skip
def test_a_flag_that_would_do_nothing_is_refused(
    line: str, idle: str, company: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = said(capsys, *line.split())
    assert message.startswith(f"paceline: {idle}") or idle in message
    assert company in message, message


@pytest.mark.parametrize(
    ("flags", "idle", "company"),
    [
        ("--discipline orca,vllm", "--discipline", "--table"),
        ("--table --blocks", "--blocks", "beside --table"),
        ("--picture a.svg --timing", "--timing", "beside --picture"),
        ("--picture a.svg --table", "--table", "beside --picture"),
        ("--picture a.png", "--picture", ".svg"),
    ],
)
def test_so_it_is_in_a_replay(
    flags: str, idle: str, company: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text(SCRIPT)
    message = said(capsys, *f"replay {script} {flags}".split())
    assert idle in message and company in message


def test_token_ids_have_no_range_where_prompts_are_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "prompts.jsonl"
    trace.write_text(json.dumps({"prompt": "word " * 9, "output_tokens": 3}) + "\n")
    message = said(capsys, *f"bench serve --trace {trace} --vocab-size 5000".split())
    assert "--vocab-size: 5000" in message and "are text" in message


def test_neutral_values_and_defaults_are_in_nobodys_way(capsys: pytest.CaptureFixture[str]) -> None:
    few = "simulate --num-prompts 5 --output-len 2"
    for more in (
        "--replicas 1 --router prefix",
        "--prefix-len 0 --prefixes 3",
        "--turns 1 --think-time 3",
        "--request-rate inf --burstiness 1.0",
        "--dataset-name random --random-input-len 8",
    ):
        assert run(f"{few} {more}".split()) == 0
    assert run(f"simulate {TRACE} --num-prompts 20 --time-scale 0.5 --seed 3".split()) == 0
    assert "trace timestamps, time x 0.5" in capsys.readouterr().out
    assert LimitFlags(goodput=["ttft:500"], ttft_p99="0.5s").targets() == {"ttft": 0.5}
    with pytest.raises(ConfigError, match="another limit"):
        LimitFlags(goodput=["ttft:500 ttft:600"]).limits()


@pytest.mark.parametrize("name", list(DISCIPLINES))
def test_servers_of_a_comparison_are_started_with_flags_that_do_something(name: str) -> None:
    (contestant,) = by_discipline([name], "smollm2-135m", "--kv-cache-memory 64MiB")
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    refuse_idle(command.make_context("serve", list(contestant.flags)), IDLE["serve"])


def test_the_table_names_flags_that_there_are() -> None:
    command = typer.main.get_command(app)
    for path, rules in IDLE.items():
        found = command
        for name in path.split():
            found = found.commands[name]  # type: ignore[attr-defined]
        names = {one.name for one in found.params}
        for rule in rules:
            told = f"{rule.flags} {rule.beside} {rule.without} {rule.unless} {rule.when[0] if rule.when else ''}"
            assert set(told.split()) <= names, (path, set(told.split()) - names)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("simulate --discipline vlm", "vllm"),
        ("simulate --order fcf", "fcfs"),
        ("simulate --gpu h10O", "h100"),
        ("simulate --model Llama-3.1-8", "llama-3.1-8b"),
        ("simulate --trace azure2023_con", "azure2023_conv"),
        ("simulate --arrivals poison", "poisson"),
        ("bench compare --disciplines orc", "orca"),
        ("disciplines sarati", "sarathi"),
        ("serve --kernels avx51", "avx512"),
        ("serve --knob growht=3", "growth"),
        ("bench serve --endpoint chats", "chat"),
        ("simulat", "simulate"),
    ],
)
def test_a_name_that_is_almost_right_is_asked_about(line: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"did you mean {meant!r}?" in said(capsys, *line.split()).lower()
