"""Requests carry their prompts as streams that keys name, so that prefixes are shared exactly as far as said."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from paceline.workload.requests import TimedRequest, Workload, WorkloadError, check, merge, stream_tokens
from paceline.workload.reshape import deal_tenants, leave_out_long, scale_lengths
from paceline.workload.synthetic import SHORT_MEDIUM_LONG, Kind, Lengths, Synthetic, shared_tokens, with_arrivals


def request(number: int, arrival: float = 0.0, **more: object) -> TimedRequest:
    values = {"prompt_len": 8, "output_len": 4, "parts": ((-1 - number, 8),), **more}
    return TimedRequest(str(number), arrival, **values)  # type: ignore[arg-type]


def test_two_prompts_agree_as_far_as_their_parts_do() -> None:
    one = request(0, prompt_len=30, parts=((7, 20), (8, 10))).token_ids(1000)
    two = request(1, prompt_len=45, parts=((7, 20), (9, 25))).token_ids(1000)
    assert one.dtype == np.int32
    assert (one.size, two.size) == (30, 45)
    assert (one[:20] == two[:20]).all()
    assert (one[20:] != two[20:30]).any()


def test_a_shorter_part_of_the_same_key_is_a_prefix() -> None:
    assert (stream_tokens(5, 100, 500)[:40] == stream_tokens(5, 40, 500)).all()


def test_tokens_are_within_the_vocabulary_and_differ_by_seed() -> None:
    tokens = stream_tokens(3, 5000, 1200, seed=1, first=1000)
    assert tokens.min() >= 1000
    assert tokens.max() < 1200
    assert (tokens != stream_tokens(3, 5000, 1200, seed=2, first=1000)).mean() > 0.9


def test_tokens_are_the_same_in_another_process() -> None:
    code = "from paceline.workload.requests import stream_tokens; print(stream_tokens(-9, 6, 30000, 4, 1000).tolist())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str(stream_tokens(-9, 6, 30000, 4, 1000).tolist())


def test_the_next_turn_repeats_the_answer_that_was_assumed() -> None:
    first, second = Synthetic((Kind(Lengths(10), Lengths(6), turns=2),)).workload(2).requests
    prompt = second.token_ids(1000)
    assert (prompt[:10] == first.token_ids(1000)).all()
    assert (prompt[10:16] == first.reply_ids(1000)).all()


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([request(0, 2.0), request(1, 1.0)], "before its predecessor"),
        ([request(0, -1.0)], "not a time"),
        ([request(0, float("nan"))], "not a time"),
        ([request(0, output_len=0)], "0 out"),
        ([request(0, prompt_len=9)], "do not sum"),
        ([request(0), request(0)], "more than once"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(requests: list[TimedRequest], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        check(Workload(requests))


def test_prompts_are_distinct_by_default() -> None:
    workload = Synthetic().workload(200)
    assert len({request.token_ids(30000).tobytes() for request in workload.requests}) == 200
    assert shared_tokens(workload) == 0


def test_shared_prefixes_are_shared_in_the_share_asked_for() -> None:
    kind = Kind(Lengths(100), Lengths(10), prefix=100, prefixes=1, prefix_share=0.5)
    workload = Synthetic((kind,)).workload(1000, seed=3)
    prompts = sum(request.prompt_len for request in workload.requests)
    assert shared_tokens(workload) / prompts == pytest.approx(0.5 * 100 / 150, abs=0.03)


def test_the_mix_called_real_has_its_shares() -> None:
    prompts = [one.prompt_len + one.output_len for one in Synthetic(SHORT_MEDIUM_LONG).workload(2000, seed=1).requests]
    assert np.mean([tokens < 200 for tokens in prompts]) == pytest.approx(0.4, abs=0.06)
    assert np.mean([tokens > 700 for tokens in prompts]) == pytest.approx(0.2, abs=0.06)


def test_the_same_seed_makes_the_same_workload() -> None:
    kinds = (Kind(Lengths(50, 0.5), Lengths(20, 0.5, "lognormal"), turns=3, think=1.0),)
    assert Synthetic(kinds).workload(30, 5).requests == Synthetic(kinds).workload(30, 5).requests
    assert Synthetic(kinds).workload(30, 5).requests != Synthetic(kinds).workload(30, 6).requests


def test_turns_of_a_conversation_come_with_it() -> None:
    from paceline.workload.arrivals import Constant

    workload = Synthetic((Kind(Lengths(5), Lengths(5), turns=3, think=1.0),)).workload(9)
    timed = check(with_arrivals(workload, Constant(1.0)))
    assert [request.arrival for request in timed.requests] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all((request.after is None) == (request.turn == 0) for request in timed.requests)


def test_long_requests_are_left_out_and_counted() -> None:
    workload = leave_out_long(Workload([request(0), request(1, prompt_len=100, parts=((1, 100),))]), 20)
    assert len(workload) == 1
    assert "1 left out: more than 20 tokens" in workload.describe()


def test_scaled_lengths_keep_prefixes_shared() -> None:
    workload = Workload([request(n, prompt_len=300, parts=((1, 200), (-n - 5, 100))) for n in range(2)])
    small = check(scale_lengths(workload, 0.1))
    assert [request.prompt_len for request in small.requests] == [30, 30]
    assert shared_tokens(small) == 20


def test_tenants_get_their_weight() -> None:
    dealt = deal_tenants(Workload([request(n) for n in range(4000)]), {"big": 3, "small": 1})
    assert sum(request.tenant == "big" for request in dealt.requests) / 4000 == pytest.approx(0.75, abs=0.03)


def test_merged_workloads_come_in_order() -> None:
    one, two = Workload([request(0, 0.0), request(1, 4.0)], "one"), Workload([request(0, 1.0)], "two")
    merged = check(merge([one, two]))
    assert [request.id for request in merged.requests] == ["one/0", "two/0", "one/1"]


def test_time_is_scaled_to_a_rate() -> None:
    workload = Workload([request(n, float(n)) for n in range(11)]).at_rate(5.0)
    assert workload.duration == pytest.approx(2.0)
    with pytest.raises(WorkloadError, match="no rate to change"):
        Workload([request(0)]).at_rate(1.0)
