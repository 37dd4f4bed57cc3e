"""Arrival processes have the rates and the burstiness they claim."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.workload.arrivals import (
    AllAtOnce,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    RateCurve,
    TraceTimes,
    dispersion,
    gap_cv,
    spread_ticks,
    times,
)
from paceline.workload.requests import WorkloadError


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_variation_asked_for(burstiness: float) -> None:
    at = times(Gamma(10.0, burstiness), 20000, seed=1)
    assert 20000 / at[-1] == pytest.approx(10.0, rel=0.05)
    assert gap_cv(at) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_poisson_counts_are_as_dispersed_as_poisson_counts() -> None:
    assert dispersion(times(Poisson(20.0), 20000, seed=2), 1.0) == pytest.approx(1.0, abs=0.15)


def test_a_ramp_reaches_its_rate_and_stays() -> None:
    at = times(Ramp(1.0, 11.0, 100.0), 1600, seed=1)
    assert np.sum(at < 100) == pytest.approx(600, rel=0.12)
    assert np.sum((at >= 100) & (at < 180)) == pytest.approx(880, rel=0.12)


def test_a_rate_curve_has_each_of_its_rates() -> None:
    at = times(RateCurve((0.0, 50.0, 100.0), (2.0, 20.0, 5.0)), 1600, seed=3)
    assert np.sum(at < 50) == pytest.approx(100, rel=0.3)
    assert np.sum((at >= 50) & (at < 100)) == pytest.approx(1000, rel=0.12)


def test_constant_arrivals_are_even() -> None:
    assert times(Constant(4.0), 5).tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    assert times(AllAtOnce(), 3).tolist() == [0, 0, 0]


def test_trace_times_end_with_the_trace() -> None:
    assert times(TraceTimes((0.0, 2.0, 6.0), 0.5), 10).tolist() == [0, 1, 3]


def test_ticks_are_spread_in_order_and_stay_within_them() -> None:
    at = np.repeat(np.arange(50) * 3.0, 10)
    spread = spread_ticks(at, 1)
    assert (np.diff(spread) >= 0).all()
    assert (spread >= at).all()
    assert (spread < at + 3.0).all()
    assert dispersion(spread, 1.0) < 0.5 * dispersion(at, 1.0)


@pytest.mark.parametrize("process", [Gamma, Constant])
@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_must_be_a_rate(process: type, rate: float) -> None:
    with pytest.raises(WorkloadError, match="rate"):
        process(rate)
