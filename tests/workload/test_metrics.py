"""Metrics mean what they say, checked against runs whose answer is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from paceline.workload.arrivals import Constant, Poisson, times
from paceline.workload.export import detail, result
from paceline.workload.metrics import Window, summarise
from paceline.workload.percentiles import binomial_ranks, distribution, pooled
from paceline.workload.records import ExactGaps, Outcome, PooledGaps, Records, RecordsBuilder
from paceline.workload.requests import WorkloadError


def served(at: np.ndarray, wait: float = 0.1, gap: float = 0.05, tokens: int = 11) -> Records:
    builder = RecordsBuilder()
    for time in at.tolist():
        end = time + wait + gap * (tokens - 1)
        gaps = [gap] * (tokens - 1)
        builder.add(time, sent=time, first=time + wait, last=end, output_tokens=tokens, prompt_tokens=7, gaps=gaps)
    return builder.build()


def test_latencies_are_vllms() -> None:
    steady = summarise(served(times(Constant(10.0), 200))).steady
    assert steady.ttft.mean == pytest.approx(0.1)
    assert steady.tpot.median == pytest.approx(0.05)
    assert steady.itl.at(99.0) == pytest.approx(0.05)
    assert steady.e2e.at(99.0) == pytest.approx(0.6)
    assert steady.output_rate == pytest.approx(110, rel=0.02)
    assert steady.request_rate == pytest.approx(10, rel=0.02)


def test_latency_counts_from_when_a_request_was_due() -> None:
    builder = RecordsBuilder()
    for number in range(30):
        builder.add(float(number), sent=number + 2.0, first=number + 2.5, last=number + 3.0, output_tokens=2)
    whole = summarise(builder.build()).whole
    assert whole.ttft.mean == pytest.approx(2.5)
    assert whole.client_ttft.mean == pytest.approx(0.5)
    assert whole.lateness.mean == pytest.approx(2.0)


def test_goodput_is_joint_and_per_target_and_failures_are_never_good() -> None:
    builder = RecordsBuilder()
    builder.add(0.0, sent=0.0, first=0.1, last=0.2, output_tokens=3)
    builder.add(1.0, sent=1.0, first=1.9, last=2.0, output_tokens=3)
    builder.add(2.0, sent=2.0, first=2.1, last=4.1, output_tokens=3)
    builder.add(3.0, sent=3.0, first=3.1, last=3.1, output_tokens=1)  # one token: TPOT counts as 0
    builder.add(4.0, sent=4.0, last=4.1, outcome=Outcome.ERROR)
    good = summarise(builder.build(), {"ttft": 0.5, "tpot": 0.5}).whole.goodput
    assert good is not None
    assert good.share == pytest.approx(2 / 5)
    assert good.per_target == {"ttft": pytest.approx(3 / 5), "tpot": pytest.approx(3 / 5)}
    assert good.rate == pytest.approx(2 / 4.1)


def test_the_four_outcomes_are_kept_apart() -> None:
    builder = RecordsBuilder()
    for outcome in Outcome:
        builder.add(0.0, sent=0.0, first=0.1, last=0.2, outcome=outcome, output_tokens=2)
    assert summarise(builder.build()).whole.outcomes == {"ok": 1, "incomplete": 1, "error": 1, "refused": 1}


def test_littles_law_holds_over_a_whole_run_and_in_a_steady_part() -> None:
    summary = summarise(served(times(Poisson(50.0), 5000, seed=1)))
    assert summary.whole.little.residual == pytest.approx(0.0, abs=1e-9)
    assert abs(summary.steady.little.residual) < 0.02
    assert summary.stability.label == "stable"


def test_a_queue_that_grows_is_called_overloaded() -> None:
    at = times(Constant(20.0), 400)
    builder = RecordsBuilder()
    for number, time in enumerate(at.tolist()):
        end = number * 0.1 + 0.2  # ten a second are done
        builder.add(time, sent=time, first=end - 0.05, last=end, output_tokens=2)
    summary = summarise(builder.build())
    assert summary.stability.label == "overloaded"
    assert summary.stability.in_flight_slope == pytest.approx(10.0, rel=0.1)


def test_a_handful_of_requests_does_not_tell_whether_a_queue_grows() -> None:
    assert summarise(served(times(Constant(10.0), 5))).stability.label == "unknown"


def test_the_steady_window_leaves_out_start_and_drain() -> None:
    window = summarise(served(times(Constant(10.0), 300))).steady.window
    assert window.settled
    assert window.begin == pytest.approx(3.0)
    assert window.end == pytest.approx(29.9)


def test_a_short_run_has_no_steady_window() -> None:
    window = summarise(served(times(Constant(10.0), 10))).steady.window
    assert not window.settled
    assert window.length > 0.9


def test_a_given_window_is_taken() -> None:
    steady = summarise(served(times(Constant(10.0), 300)), window=Window(5.0, 15.0)).steady
    assert steady.total == 101


def test_intervals_hold_the_true_percentile_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    truth = math.log(10)  # p90 of the unit exponential
    held = 0
    for _ in range(400):
        found = distribution(generator.exponential(size=300)).percentiles[90.0]
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    assert held / 400 > 0.93


def test_intervals_widen_when_neighbours_are_alike() -> None:
    generator = np.random.default_rng(1)
    independent = generator.exponential(size=2000)
    alike = np.repeat(generator.exponential(size=100), 20)
    wide, narrow = (distribution(values).percentiles[50.0] for values in (alike, independent))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)  # type: ignore[operator]


def test_a_small_sample_has_no_bound_on_its_tail() -> None:
    assert distribution(np.arange(300.0)).percentiles[99.9].high is None
    low, high = binomial_ranks(1000, 0.99)
    assert (low, high) == (983, 997)
    assert binomial_ranks(10, 0.5) == (2, 9)


def test_pooled_gaps_agree_with_exact_ones() -> None:
    values = np.random.default_rng(2).lognormal(-3, 0.7, 20000)
    binned = PooledGaps()
    binned.add(values)
    exact, rough = pooled(ExactGaps([values])), pooled(binned)
    assert rough.count == exact.count
    assert rough.mean == pytest.approx(exact.mean)
    for percent in (50.0, 99.0, 99.9):
        assert rough.at(percent) == pytest.approx(exact.at(percent), rel=0.02)


def test_results_have_vllms_names_and_are_json() -> None:
    records = served(times(Poisson(5.0), 100))
    values = json.loads(
        json.dumps(result(summarise(records, {"ttft": 0.2}), records) | detail(records), allow_nan=False)
    )
    for name in (
        *(
            "duration",
            "completed",
            "total_input_tokens",
            "total_output_tokens",
            "request_throughput",
            "request_goodput",
        ),
        *("output_throughput", "total_token_throughput", "mean_ttft_ms", "median_tpot_ms", "std_itl_ms", "p99_e2el_ms"),
        *("max_output_tokens_per_s", "max_concurrent_requests", "input_lens", "output_lens", "ttfts", "itls"),
    ):
        assert values[name] is not None, name
    assert values["mean_ttft_ms"] == pytest.approx(100)
    assert values["completed"] == 100


def test_a_run_of_failures_has_figures_too() -> None:
    builder = RecordsBuilder()
    for number in range(5):
        builder.add(float(number), sent=float(number), last=number + 0.1, outcome=Outcome.ERROR)
    records = builder.build()
    values = result(summarise(records, {"tpot": 0.1}), records)
    assert values["completed"] == 0
    assert values["mean_ttft_ms"] is None
    json.dumps(values, allow_nan=False)


def test_tenants_are_told_apart() -> None:
    builder = RecordsBuilder()
    for number in range(40):
        slow = number % 2
        end = number + (2.0 if slow else 0.5)
        builder.add(float(number), sent=float(number), first=end, last=end, output_tokens=1, tenant="ba"[slow])
    tenants = summarise(builder.build()).per_tenant
    assert tenants["a"].ttft.median == pytest.approx(2.0)
    assert tenants["b"].ttft.median == pytest.approx(0.5)


@pytest.mark.parametrize("targets", [{"latency": 1.0}, {"ttft": 0.0}, {"ttft": float("nan")}])
def test_targets_that_make_no_sense_are_refused(targets: dict[str, float]) -> None:
    with pytest.raises(WorkloadError, match="target"):
        summarise(served(times(Constant(1.0), 3)), targets)
