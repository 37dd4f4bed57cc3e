"""What a user types wrong costs one line on standard error and status 2; what is light starts at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.sizes import parse_memory, parse_size

SCRIPT = {
    "config": {"block_size": 4, "num_blocks": 32, "max_num_seqs": 4, "max_num_batched_tokens": 16},
    "requests": [{"id": name, "prompt_len": 9, "output_len": 3} for name in "ab"],
}


def run(*arguments: str, stdin: str = "", timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline", *arguments], input=stdin, capture_output=True, text=True, timeout=timeout
    )


def check_one_line(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode == 2, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in lines[0]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["--help"]),
        (["serv"], ["serv"]),
        (["serve", "--prot", "1"], ["--prot", "--port"]),
        (["serve", "--port"], ["--port"]),
        (["serve", "--port", "many"], ["--port", "many", "65535"]),
        (["serve", "--port", "99999"], ["--port", "99999", "65535"]),
        (["serve", "--host", "no.such.host.invalid"], ["--host", "no.such.host.invalid"]),
        (["serve", "--max-num-seqs", "0"], ["--max-num-seqs", "at least 1"]),
        (["serve", "--watermark", "2"], ["--watermark", "2"]),
        (["serve", "--dtype", "float8"], ["--dtype", "bfloat16"]),
        (["serve", "--device", "tpu"], ["--device", "cuda"]),
        (["serve", "--gpu-memory-utilization", "1.5"], ["--gpu-memory-utilization"]),
        (["serve", "--kv-cache-memory", "3 potatoes"], ["--kv-cache-memory", "MiB"]),
        (["serve", "--max-body-size", "1"], ["--max-body-size", "1KiB"]),
        (["serve", "--api-key", ""], ["--api-key"]),
        (["serve", "--log-level", "loud"], ["--log-level", "debug"]),
        (["serve", "one", "--model", "two"], ["--model", "two"]),
        (["serve", "one", "two"], ["two"]),
        (["replay"], ["script"]),
        (["replay", "/no/such/script.json"], ["/no/such/script.json"]),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], parts: list[str]) -> None:
    check_one_line(run(*arguments), *parts)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["serve", "--discipline", "chaos"], ["--discipline", "chaos", "vllm"]),
        (["serve", "--order", "chaos"], ["--order", "chaos", "fcfs"]),
        (["serve", "--max-num-batched-tokens", "8"], ["--max-num-batched-tokens", "--max-num-seqs"]),
        (["serve", "--kv-cache-memory", "1KiB"], ["--kv-cache-memory"]),
        (["serve", "/no/such/model"], ["/no/such/model"]),
        (["serve", "/no/such/model.gguf"], ["/no/such/model.gguf"]),
        (["serve", "--max-model-len", "99999999"], ["--max-model-len"]),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_served_is_one_line(arguments: list[str], parts: list[str]) -> None:
    check_one_line(run(*arguments, "--port", "0", "--threads", "1"), *parts)


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"GGUF", b"nonsense" * 100])
def test_a_corrupt_weight_file_is_named(tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content)
    check_one_line(run("serve", str(broken), "--port", "0"), str(broken))


def test_a_port_in_use_is_named_before_the_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        check_one_line(run("serve", "--port", port), "--port", port)


def test_replay_prints_one_object_per_step(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(SCRIPT))
    result = run("replay", str(path))
    assert result.returncode == 0 and result.stderr == ""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["step"] for line in lines[:-1]] == list(range(len(lines) - 1))
    assert lines[-1]["summary"]["finished"] == 2
    assert run("replay", "-", stdin=json.dumps(SCRIPT)).stdout == result.stdout
    detailed = run("replay", str(path), "--discipline", "vllm", "--blocks", "--timing").stdout.splitlines()
    assert {"blocks", "us"} <= set(json.loads(detailed[0]))
    assert json.loads(detailed[-1])["summary"]["discipline"] == "vllm"


def test_replay_names_what_is_wrong_in_a_script(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"config": {"no_such_key": 1}, "requests": []}', '{"config": {}, "requests": [{}]}'):
        check_one_line(run("replay", "-", stdin=text))


def test_replay_into_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({**SCRIPT, "requests": [{"id": "a", "prompt_len": 9, "output_len": 2000}]}))
    command = f"{sys.executable} -m paceline replay {path} | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert json.loads(result.stdout)["step"] == 0
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["version"], ["replay", "-"]])
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn', 'zmq'}\n"
        "atexit.register(lambda: print('heavy:', sorted(heavy & set(sys.modules)), file=sys.stderr))\n"
        f"from paceline.cli import main\nmain({arguments!r})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(SCRIPT), capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0
    assert result.stderr.strip() == "heavy: []"


def test_without_the_server_extra_replay_still_works(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("typer", "rich"):
        (blocked / f"{name}.py").write_text(f"raise ModuleNotFoundError('blocked', name={name!r})")
    environment = {**os.environ, "PYTHONPATH": str(blocked)}

    def run_blocked(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "paceline", *arguments],
            input=json.dumps(SCRIPT),
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert '"summary"' in run_blocked("replay", "-").stdout
    check_one_line(run_blocked("serve"), "paceline[server]")
    check_one_line(run_blocked("simulate"), "paceline[bench]")


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if (top := name.split(".")[0]) in {%s}:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)

sys.meta_path.insert(0, Absent())
from paceline.cli import main
main(sys.argv[1:])
"""


def run_without(modules: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = WITHOUT % ", ".join(repr(name) for name in modules.split())
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--num-prompts", "5"],
        ["plan", "--ttft-p99", "2s", "--num-prompts", "100", "--trial-requests", "100", "--no-what-if", "--quiet"],
    ],
)
def test_simulate_and_plan_need_neither_torch_nor_a_client_nor_scipy(arguments: list[str]) -> None:
    result = run_without("torch transformers aiohttp scipy plotly fastapi zmq msgspec", *arguments)
    assert result.returncode == 0 and result.stderr == "", result.stderr


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("aiohttp", ["bench", "serve"], "bench"),
        ("plotly", ["simulate", "--num-prompts", "5", "--html", "report.html"], "bench"),
        ("msgspec", ["profile"], "server"),
    ],
)
def test_a_missing_extra_is_named(
    missing: str, arguments: list[str], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_without(missing, *arguments)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert f"pip install 'paceline[{extra}]'" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("1k", 1024), ("512MiB", 512 * 2**20), ("2G", 2**31), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1X", "1e9", "iB", "5i", "5 G G"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_a_number_without_its_unit_is_not_taken_for_bytes_of_memory() -> None:
    assert (parse_memory("64KiB"), parse_memory("65536"), parse_memory(2**30)) == (2**16, 2**16, 2**30)
    for text in ("5", " 4096 ", 5):
        with pytest.raises(ValueError, match=r"alone is \d+ bytes, .* give a unit"):
            parse_memory(text)
