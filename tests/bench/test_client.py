"""The load client reads streams right, keeps outcomes apart, and measures from when requests were due."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from paceline.bench.errors import BenchError
from paceline.bench.load import LoadOptions
from paceline.bench.measure import MeasureOptions, measure
from paceline.bench.sse import Events
from paceline.bench.target import Target
from paceline.workload.arrivals import AllAtOnce, Arrivals, Constant, Poisson
from paceline.workload.records import ExactGaps
from paceline.workload.requests import Workload, WorkloadError
from paceline.workload.run import Run
from paceline.workload.synthetic import Kind, Lengths, Synthetic
from tests.bench.fake_server import FakeServer


def workload(count: int = 12, arrivals: Arrivals | None = None, tokens: int = 6, **kind: object) -> Workload:
    kinds = (Kind(Lengths(20), Lengths(tokens), **kind),)  # type: ignore[arg-type]
    return Synthetic(kinds, arrivals or Constant(100.0)).workload(count)


def run(fake: FakeServer, load: Workload, options: LoadOptions | None = None, **more: object) -> Run:
    target = Target(fake.url, **{key: more.pop(key) for key in list(more) if key == "endpoint"})  # type: ignore[arg-type]
    wanted = MeasureOptions(load=options or LoadOptions(), warmups=0, **more)  # type: ignore[arg-type]
    return asyncio.run(measure(target, load, wanted))


def texts(run: Run) -> str:
    return "\n".join(f"{finding.level}: {finding.text}" for finding in run.findings)


def test_every_way_to_cut_a_stream_gives_the_same_events() -> None:
    data = b'data: {"a": 1}\n\n: comment\n\ndata: x\ndata: y\n\nid: 5\ndata:z\r\n\r\ndata: [DONE]'
    for size in range(1, len(data)):
        events = Events()
        found = [one for begin in range(0, len(data), size) for one in events.feed(data[begin : begin + size])]
        assert found + events.close() == [b'{"a": 1}', b"x\ny", b"z", b"[DONE]"], size


def test_token_ids_go_out_exactly_and_are_distinct(fake: FakeServer) -> None:
    done = run(fake, workload())
    prompts = [tuple(body["prompt"]) for body in fake.seen[-12:]]
    assert {len(prompt) for prompt in prompts} == {20}
    assert len(set(prompts)) == 12
    assert all(1000 <= token < 30000 for prompt in prompts for token in prompt)
    assert all(body["ignore_eos"] and body["max_tokens"] == 6 for body in fake.seen[-12:])
    assert done.summary.whole.outcomes["ok"] == 12
    assert done.summary.whole.output_tokens == 72


def test_several_tokens_in_a_chunk_are_counted(fake: FakeServer) -> None:
    fake.manner = "three at a time"
    done = run(fake, workload())
    assert done.records.output_tokens.tolist() == [6] * 12
    assert isinstance(done.records.gaps, ExactGaps)
    assert {gaps.size for gaps in done.records.gaps.per_request} == {1}
    assert "chunks hold 3.00 tokens" in texts(done)


def test_a_torn_stream_is_read_whole(fake: FakeServer) -> None:
    fake.manner = "torn"
    done = run(fake, workload())
    assert done.summary.whole.outcomes["ok"] == 12
    assert done.records.output_tokens.tolist() == [6] * 12


@pytest.mark.parametrize(
    ("manner", "outcome", "said"),
    [
        ("breaks off", "incomplete", "the stream broke off"),
        ("error inside", "error", "the engine died"),
        ("full after two", "refused", "status 429: too many requests"),
    ],
)
def test_what_fails_is_kept_apart_and_said(fake: FakeServer, manner: str, outcome: str, said: str) -> None:
    fake.manner = manner
    done = run(fake, workload())
    assert done.summary.whole.outcomes[outcome] >= 10
    assert said in texts(done)
    assert done.summary.whole.total == 12


def test_a_time_limit_cuts_off_and_counts(fake: FakeServer) -> None:
    fake.manner = "never ends"
    done = run(fake, workload(), LoadOptions(time_limit=0.5))
    assert done.summary.whole.outcomes["incomplete"] == 12
    assert "cut off by the end of the run" in texts(done)


def test_a_server_without_extras_is_served_plainly(fake: FakeServer) -> None:
    fake.manner = "no extras"
    done = run(fake, workload())
    assert "ignore_eos" not in fake.seen[-1]
    assert done.records.output_tokens.tolist() == [6] * 12
    assert done.facts["ignore_eos"] is False


def test_a_server_without_token_ids_gets_words(fake: FakeServer) -> None:
    fake.manner = "text only"
    done = run(fake, workload())
    assert len(fake.seen[-1]["prompt"].split()) == 20
    assert done.facts["prompts"] == "text"


def test_chat_is_streamed_too(fake: FakeServer) -> None:
    done = run(fake, workload(), endpoint="chat")
    assert fake.seen[-1]["messages"][0]["role"] == "user"
    assert done.summary.whole.outcomes["ok"] == 12


def test_latency_includes_the_wait_for_a_place(fake: FakeServer) -> None:
    done = run(fake, workload(8, AllAtOnce()), LoadOptions(concurrency=1))
    assert done.summary.whole.ttft.maximum > 5 * done.summary.whole.client_ttft.maximum
    assert "the limit of 1 at a time" in texts(done) or done.summary.whole.lateness.at(99.0) < 0.25


def test_a_closed_loop_keeps_its_number_in_flight(fake: FakeServer) -> None:
    done = run(fake, workload(30, AllAtOnce()), LoadOptions(concurrency=3, closed=True))
    starts, ends = done.records.sent, done.records.last
    assert max(int(np.sum((starts <= at) & (ends > at))) for at in starts) == 3
    assert done.loop == "closed"
    assert "closed loop of 3" in texts(done)


def test_turns_wait_for_the_turn_before(fake: FakeServer) -> None:
    load = workload(9, Constant(20.0), turns=3, think=0.02)
    done = run(fake, load)
    assert done.summary.whole.outcomes["ok"] == 9
    prompts = sorted((body["prompt"] for body in fake.seen[-9:]), key=len)
    assert [len(prompt) for prompt in prompts] == [20] * 3 + [46] * 3 + [72] * 3
    assert {tuple(prompt[:20]) for prompt in prompts[3:6]} == {tuple(prompt) for prompt in prompts[:3]}
    assert np.ptp(done.records.scheduled) > np.ptp(load.times())


def test_all_at_once_is_warned_of(fake: FakeServer) -> None:
    assert "all requests came at once" in texts(run(fake, workload(12, AllAtOnce())))


def test_goodput_and_timing_are_right_for_a_server_of_known_speed(fake: FakeServer) -> None:
    done = run(fake, workload(60, Poisson(40.0)), targets={"ttft": 0.5, "tpot": 0.2})
    steady = done.summary.steady
    assert 0.009 < steady.ttft.median < 0.1
    assert 0.009 < steady.tpot.median < 0.05
    assert steady.goodput is not None
    assert steady.goodput.share == 1.0
    assert done.valid


def test_no_server_is_one_clear_message() -> None:
    with pytest.raises(BenchError, match=r"no server answers at http://127\.0\.0\.1:9"):
        asyncio.run(measure(Target("http://127.0.0.1:9"), workload(), MeasureOptions()))


def test_a_server_that_refuses_the_probe_is_named(fake: FakeServer) -> None:
    fake.manner = "full"
    with pytest.raises(BenchError, match="does not serve a test request; status 429: "):
        run(fake, workload())


def test_requests_longer_than_the_context_are_refused_before_the_run(fake: FakeServer) -> None:
    long = Synthetic((Kind(Lengths(5000), Lengths(4)),)).workload(3)
    with pytest.raises(WorkloadError, match="3 of 3 requests are longer than fake's context of 4096"):
        run(fake, long)
