"""`paceline bench offline`: workloads, the figures of a run, and the command on the real model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.bench.memory import resident_bytes, status
from paceline.bench.offline import News, drive, figures, records_of
from paceline.bench.offline_workloads import Size, longest, workload
from paceline.cli.app import run
from paceline.cli.bench_offline_flags import NAMES, EngineFlags, engine_config
from paceline.errors import ConfigError
from paceline.workload.arrivals import Constant
from paceline.workload.synthetic import with_arrivals


class Steps:
    """An engine whose clock is its steps: each takes a second and gives every request it has one token."""

    vocab_size = 1000

    def __init__(self) -> None:
        self.now, self.left, self.prompts = 0.0, {}, {}  # type: ignore[var-annotated]

    def add(self, number: int, prompt: np.ndarray, output: int) -> None:
        self.left[number], self.prompts[number] = output, prompt

    def step(self) -> list[News]:
        self.now += 1.0
        found = []
        for number in list(self.left):
            self.left[number] -= 1
            found.append(News(number, 1, not self.left[number], 0))
            if not self.left[number]:
                del self.left[number]
        return found

    def stats(self) -> dict[str, float]:
        return {"steps": self.now}

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_w1_has_the_lengths_it_says() -> None:
    load = workload("w1", Size())
    outputs = sorted(request.output_len for request in load.requests)
    assert len(load) == 64
    assert [sum(low <= out <= high for out in outputs) for low, high in ((10, 99), (100, 500), (501, 800))] == [
        26,
        25,
        13,
    ]
    assert all(16 <= request.prompt_len <= 512 for request in load.requests)
    assert load.requests == workload("w1", Size()).requests
    assert load.requests != workload("w1", Size(seed=1)).requests


def test_prompts_share_what_the_workload_says_and_nothing_else() -> None:
    prompts = [request.token_ids(49152, 3, 100) for request in workload("shared-prefix", Size(requests=4)).requests]
    assert all(len(prompt) == 1050 and (prompt[:1000] == prompts[0][:1000]).all() for prompt in prompts)
    assert len({prompt[1000:].tobytes() for prompt in prompts}) == 4
    alone = [request.token_ids(49152, 3, 100) for request in workload("decode", Size(streams=4)).requests]
    assert len({prompt[:4].tobytes() for prompt in alone}) == 4


def test_a_scale_shortens_every_length() -> None:
    load = workload("prefill", Size(scale=0.1))
    assert [(request.prompt_len, request.output_len) for request in load.requests] == [(205, 1)] * 8
    assert longest(workload("decode", Size(streams=2, context=100, output=20, scale=0.5))) == 50 + 10


@pytest.mark.parametrize("wrong", [{"requests": 0}, {"streams": 0}, {"context": 0}, {"output": 0}, {"scale": 0.0}])
def test_sizes_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Size(**wrong)  # type: ignore[arg-type]


def test_figures_are_of_the_stretch_they_name() -> None:
    """Two streams: first tokens after 2 and 4 s, then a token each every half second; the first ends at 6 s."""
    load = workload("decode", Size(streams=2, context=10, output=9))
    first = [2.0 + 0.5 * number for number in range(9)]
    second = [4.0 + 0.5 * number for number in range(9)]
    found = figures(records_of(load, [first, second]))
    assert found.prompt_rate == pytest.approx(20 / 4.0)
    assert found.decode_rate == pytest.approx(4.0)  # from 4 to 6 s: four tokens of each
    assert found.ms_per_token == pytest.approx(500.0)
    assert found.seconds == pytest.approx(8.0)
    assert found.output_rate == pytest.approx(18 / 8.0)


def test_requests_are_given_to_the_engine_when_they_are_due() -> None:
    engine = Steps()
    load = with_arrivals(workload("decode", Size(streams=3, context=5, output=4)), Constant(0.1))
    done = drive(engine, load, clock=lambda: engine.now, sleep=engine.wait)
    assert done.records.sent.tolist() == [0.0, 10.0, 20.0]
    assert done.records.ttft.tolist() == [1.0, 1.0, 1.0]
    assert done.records.output_tokens.tolist() == [4, 4, 4]
    assert done.counters["steps"] == 24.0
    assert (engine.prompts[0] >= 100).all()


def test_memory_counts_what_was_written_to() -> None:
    import mmap

    pages = mmap.mmap(-1, 64 * mmap.PAGESIZE)
    array = np.frombuffer(pages, np.uint8)
    array[: 8 * mmap.PAGESIZE] = 1
    found = resident_bytes([(array.ctypes.data, array.nbytes)])
    assert 8 * mmap.PAGESIZE <= found <= array.nbytes
    now, most = status()
    assert 0 <= now <= most


def test_every_workload_is_offered_and_engine_flags_are_those_of_serve() -> None:
    assert {"w1", "shared-prefix", "decode", "prefill", "continuous-vs-static"} == set(NAMES)
    flags = EngineFlags(threads=1, knob=["growth=16"], enable_prefix_caching=False)
    config = engine_config("smollm2-135m", flags)
    assert (config.threads, config.enable_prefix_caching, dict(config.knobs)) == (1, False, {"growth": 16})


def test_the_command_prints_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "offline.json"
    small = ("--kv-cache-memory", "64MiB", "--threads", "1", "--json", str(path))
    assert run(["bench", "offline", "--workload", "w1", "--requests", "6", "--scale", "0.02", *small]) == 0
    said, saved = capsys.readouterr().out, json.loads(path.read_text())
    assert "output tokens/s" in said
    assert "TTFT p99" in said
    assert "KV written to, of 64 configured" in said
    (one,) = saved["runs"]
    asked = workload("w1", Size(requests=6, scale=0.02)).requests
    assert one["output_tokens"] == sum(request.output_len for request in asked)
    assert one["counters"]["steps"] >= max(request.output_len for request in asked)
    assert saved["settings"]["threads"] == 1
    assert saved["machine"]["versions"]["torch"]
    memory = saved["memory"]
    assert 2**20 < memory["kv_resident"] <= memory["kv_configured"] <= 64 * 2**20
    assert 90e6 < memory["weights"] < 600e6
    assert memory["rest"] == memory["resident"] - memory["weights"] - memory["kv_resident"]


def test_the_cache_is_measured_against_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shared.json"
    small = ("--kv-cache-memory", "64MiB", "--threads", "1", "--json", str(path))
    assert run(["bench", "offline", "--workload", "shared-prefix", "--requests", "6", "--scale", "0.1", *small]) == 0
    assert "the cache makes it" in capsys.readouterr().out
    on, off = json.loads(path.read_text())["runs"]
    assert on["counters"]["prefix_hit_tokens"] >= 5 * 96
    assert off["counters"]["prefix_hit_tokens"] == 0


@pytest.mark.slow
def test_continuous_batching_is_measured_against_static(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--kv-cache-memory", "64MiB", "--threads", "1", "--requests", "6", "--scale", "0.01")
    assert run(["bench", "offline", "--workload", "continuous-vs-static", *small]) == 0
    assert "p99 TTFT of static is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "w2"), "--workload: 'w2' is not valid"),
        (("--scale", "2"), "--scale: 2.0 is not valid"),
        (("--rounds", "0"), "--rounds: 0 is not valid"),
        (("--requests", "0"), "--requests: 0 is not valid"),
        (("--discipline", "nonsense"), "nonsense"),
        (("--workload", "decode", "--max-model-len", "300", "--threads", "1"), "--max-model-len: 300 is not valid"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "offline", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_peers_are_stepped_until_every_request_has_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "peers"))
    import environments
    import turns

    engine = Steps()
    wrapped = SimpleNamespace(add=engine.add, step=lambda: [(news.number, news.tokens) for news in engine.step()])
    assert [len(one) for one in turns.stepped(wrapped, [[1], [2]], [3, 1])] == [3, 1]
    assert "-DGGML_AMX_TILE=OFF" in environments.llama_flags()
