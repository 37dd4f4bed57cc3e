"""`paceline bench` as a user runs it, on the real model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paceline.cli.app import run
from tests.bench.fake_server import FakeServer
from tests.server.conftest import LiveServer

VLLM_KEYS = {
    *("date", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness"),
    *("max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
    *(f"{name}_{metric}_ms" for name in ("mean", "median", "std", "p99") for metric in ("ttft", "tpot", "itl", "e2el")),
    *("input_lens", "output_lens", "ttfts", "itls", "start_times", "latencies"),
}
"""What scripts that read vLLM's results look for."""


def bench(*arguments: str) -> int:
    return run(["bench", *arguments])


def test_a_run_prints_saves_and_draws(live: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    status = bench(
        *("serve", "--base-url", live.url, "--num-prompts", "12", "--input-len", "24", "--output-len", "6"),
        *("--request-rate", "8", "--prefix-len", "32", "--tenants", "a:1,b:1", "--goodput", "ttft:60000 tpot:9000"),
        *("--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "result.json", "--html", str(page)),
        *("--metadata", "purpose=test", "--max-lateness", "30"),
    )
    said = capsys.readouterr().out
    values = json.loads((tmp_path / "result.json").read_text())
    assert status in (0, 1), said  # 1: a busy machine may keep the client from its rate
    assert "12 requests: 12 ok" in said
    assert "95 % interval" in said
    assert values["completed"] == 12
    assert values["input_lens"] == [56] * 12
    assert values["output_lens"] == [6] * 12
    assert values["request_goodput"] > 0
    assert values["purpose"] == "test"
    assert values["errors"] == [""] * 12
    assert set(values) >= VLLM_KEYS
    assert values["whole"]["cached_tokens"] > 0
    assert set(values["per_tenant"]) == {"a", "b"}
    text = page.read_text()
    assert not re.search(r'(src|href)="?https?://', text.split("<script>", 1)[0])
    assert text.count("<figure") >= 7
    for payload in re.findall(r"<script type=application/json>(.*?)</script>", text):
        assert json.loads(payload)["data"] is not None


def test_exact_ids_fill_the_prefix_cache_as_intended(live: LiveServer, tmp_path: Path) -> None:
    bench(
        *("serve", "--base-url", live.url, "--num-prompts", "6", "--input-len", "8", "--output-len", "2", "--quiet"),
        *("--prefix-len", "96", "--concurrency", "1", "--seed", "77", "--save-result"),
        *("--result-dir", str(tmp_path), "--result-filename", "result.json"),
    )
    values = json.loads((tmp_path / "result.json").read_text())
    assert values["whole"]["cached_tokens"] == 5 * 96
    assert values["loop"] == "closed"


def test_a_trace_is_replayed(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    bench(
        *("serve", "--base-url", live.url, "--trace", "azure2023_conv", "--num-prompts", "12", "--request-rate", "12"),
        *("--scale-lengths", "0.02", "--num-warmups", "0", "--quiet", "--max-lateness", "30"),
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "trace timestamps, time x" in said
    assert "12 requests: 12 ok" in said


def test_a_sweep_finds_the_knee(fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This server serves one request at a time: a request holds it for some 45 ms, so it does some 20 a second."""
    fake.manner = "one at a time"
    page = tmp_path / "sweep.html"
    status = bench(
        *("sweep", "--base-url", fake.url, "--num-prompts", "25", "--output-len", "4", "--start-rate", "8", "--quiet"),
        *("--steps", "1", "--good-share", "0.9", "--goodput", "ttft:200", "--html", str(page), "--num-warmups", "0"),
        *("--arrivals", "constant", "--save-result", "--result-dir", str(tmp_path), "--result-filename", "sweep.json"),
    )
    said = " ".join(capsys.readouterr().out.split())
    assert status == 0, said
    assert "Knee: " in said
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert 8 <= found["knee_requests_per_second"] <= 28
    assert any(one["steady"]["goodput"]["share"] < 0.9 for one in found["runs"])
    assert "Requests done by rate" in page.read_text()
    asked = [tuple(body["prompt"]) for body in fake.seen if len(body["prompt"]) > 4]
    assert len(set(asked)) == len(asked)  # the second rate does not find the prompts of the first in a cache


def test_rates_that_all_break_are_said(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--rates", "20,40", "--num-prompts", "10", "--output-len", "2", "--goodput", "ttft:0.001", "--quiet")
    assert bench("sweep", "--base-url", fake.url, *flags) == 1
    assert "No rate from 20/s on keeps 99% within TTFT 0.001 ms" in " ".join(capsys.readouterr().out.split())


def test_servers_are_compared_in_turns(fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "compare.html"
    bench(
        *("compare", "--base-urls", f"one={fake.url},two={fake.url}", "--rounds", "2", "--num-prompts", "8"),
        *("--input-len", "16", "--output-len", "3", "--concurrency", "4", "--quiet", "--html", str(page)),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "compare.json"),
    )
    assert re.search(r"one +two\n", capsys.readouterr().out)
    runs = json.loads((tmp_path / "compare.json").read_text())["runs"]
    assert [one["label"] for one in runs] == ["one", "one", "two", "two"]
    asked = [tuple(body["prompt"]) for body in fake.seen if len(body["prompt"]) == 16]
    assert len(set(asked)) >= 2 * 8  # each round has prompts of its own, the same for both
    assert page.read_text().count("<details>") >= 2


@pytest.mark.slow
def test_a_discipline_is_served_for_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    bench(
        *("compare", "--disciplines", "orca", "--rounds", "1", "--num-prompts", "3", "--input-len", "8", "--quiet"),
        *("--output-len", "2", "--concurrency", "2", "--serve-args", "--threads 1 --kv-cache-memory 64MiB"),
    )
    assert re.search(r"failed +0\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "nothing"), "no trace is called 'nothing'"),
        (("--request-rate", "fast"), "--request-rate: 'fast' is not valid"),
        (("--goodput", "latency:5"), "--goodput: 'latency:5' is not valid"),
        (("--arrivals", "trace"), "--arrivals: 'trace' is not valid"),
        (("--ramp", "1:2"), "--ramp: '1:2' is not valid"),
        (("--mix", "1:2"), "--mix: '1:2' is not valid"),
        (("--concurrency", "0"), "--concurrency: 0 is not valid"),
        (("--concurrency", "2", "--max-concurrency", "2"), "--max-concurrency: 2 is not valid"),
        (("--extra-body", "[1]"), "--extra-body: '[1]' is not valid"),
        (("--num-prompts", "0"), "--num-prompts: 0 is not valid"),
        (("--percentiles", "50,101"), "--percentiles: '50,101' is not valid"),
        (("--metadata", "x"), "--metadata: 'x' is not valid"),
        (("--trace", "azure2023_code", "--num-prompts", "9999"), "at most 4500"),
        (("--base-url", "127.0.0.1:8000"), "it must start with http:// or https://"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("serve", "--quiet", *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_comparison_needs_something_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("compare") == 2
    assert "--disciplines" in capsys.readouterr().err
    assert bench("compare", "--disciplines", "paceline,nonsense") == 2
    assert "nonsense" in capsys.readouterr().err
