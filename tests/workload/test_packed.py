"""Requests as columns are the requests they were made from."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from paceline.workload.arrivals import Poisson
from paceline.workload.packed import PackedRequests, pack
from paceline.workload.requests import TimedRequest, Workload, WorkloadError, check
from paceline.workload.synthetic import Kind, Lengths, Synthetic, with_arrivals
from paceline.workload.traces import read


def plain(count: int) -> list[TimedRequest]:
    return [TimedRequest(str(at), at / 4, 10 + at, 1 + at % 3, ((7 * at, 10 + at),)) for at in range(count)]


def test_plain_requests_are_packed_and_come_out_as_they_went_in() -> None:
    given = plain(20)
    packed = pack(given)
    assert isinstance(packed, PackedRequests)
    assert packed == given and list(packed) == given and packed[-1] == given[-1]
    assert packed[3:9] == given[3:9] and packed[3:9][1] == given[4] and packed[::3] == given[::3]
    assert pickle.loads(pickle.dumps(packed)) == given
    with pytest.raises(IndexError, match="request 20 of 20"):
        packed[20]


@pytest.mark.parametrize(
    "change",
    [{"tenant": "a"}, {"session": "s"}, {"priority": 1}, {"id": "other"}, {"parts": ((1, 5), (2, 10))}, {"after": 0.0}],
)
def test_one_that_is_not_plain_keeps_all_of_them_whole(change: dict[str, object]) -> None:
    given = plain(8)
    given[5] = replace(given[5], **change)  # type: ignore[arg-type]
    packed = pack(given)
    assert not isinstance(packed, PackedRequests)
    assert packed == given


def test_a_packed_workload_is_moved_cut_and_described_as_any_other() -> None:
    whole, packed = Workload(plain(40), "some"), Workload(pack(plain(40)), "some")
    for change in (lambda one: one.at_rate(3.0), lambda one: one.head(7), lambda one: one.scaled(2.0)):
        assert change(packed).requests == change(whole).requests
        assert change(packed).describe() == change(whole).describe()
    for mine, its in zip(packed.lengths(), whole.lengths(), strict=True):
        np.testing.assert_array_equal(mine, its)
    arrivals = Poisson(5.0)
    assert with_arrivals(packed, arrivals, 3).requests == with_arrivals(whole, arrivals, 3).requests


def test_times_that_make_no_sense_are_refused_in_the_same_words() -> None:
    given = plain(6)
    given[4] = replace(given[4], arrival=0.1)
    for requests in (given, pack(given)):
        with pytest.raises(WorkloadError, match=r"some, request 4 \(4\): arrives at 0\.1 s, before its predecessor"):
            check(Workload(requests, "some"))


def test_traces_of_lengths_and_generated_requests_are_packed() -> None:
    kinds = (Kind(Lengths(50, 0.5), Lengths(20, 0.5)),)
    assert isinstance(read("azure2023_conv").requests, PackedRequests)
    assert isinstance(Synthetic(kinds, Poisson(3.0)).workload(100).requests, PackedRequests)
    assert not isinstance(Synthetic((replace(kinds[0], turns=2),)).workload(10).requests, PackedRequests)


def test_prompts_that_begin_alike_are_told_by_their_keys() -> None:
    given = plain(10)
    assert pack(given).distinct  # type: ignore[attr-defined]
    given[9] = replace(given[9], parts=((7 * 2, given[9].prompt_len),))
    assert not pack(given).distinct  # type: ignore[attr-defined]
