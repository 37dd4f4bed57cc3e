"""Results as JSON, under the names vLLM's `--save-result` writes, so that existing scripts read them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from paceline.workload.metrics import Stretch, Summary, in_flight, output_peak
from paceline.workload.percentiles import Distribution
from paceline.workload.records import ExactGaps, Outcome, Records

_MS = 1000.0


def result(summary: Summary, records: Records) -> dict[str, Any]:
    """vLLM's keys over the whole run, then ours: `steady`, `stability`, `little`, `per_tenant`, intervals."""
    whole = summary.whole
    values: dict[str, Any] = {
        "duration": whole.window.length,
        "completed": whole.outcomes["ok"],
        "failed": whole.total - whole.outcomes["ok"],
        "total_input_tokens": whole.input_tokens,
        "total_output_tokens": whole.output_tokens,
        "request_throughput": whole.outcomes["ok"] / max(whole.window.length, 1e-9),
        "request_goodput": whole.goodput.rate if whole.goodput else None,
        "output_throughput": whole.output_tokens / max(whole.window.length, 1e-9),
        "total_token_throughput": (whole.input_tokens + whole.output_tokens) / max(whole.window.length, 1e-9),
        "max_output_tokens_per_s": output_peak(records),
        "max_concurrent_requests": int(in_flight(records, 2000)[1].max()),
    }
    values |= latencies(whole)
    values |= {
        "outcomes": whole.outcomes,
        "steady": stretch_values(summary.steady),
        "whole": stretch_values(whole),
        "stability": {
            "label": summary.stability.label,
            "in_flight_slope": summary.stability.in_flight_slope,
            "completion_ratio": summary.stability.completion_ratio,
        },
        "per_tenant": {name: stretch_values(one) for name, one in summary.per_tenant.items()},
    }
    return clean(values)


def detail(records: Records) -> dict[str, Any]:
    """vLLM's `--save-detailed`: lists with one entry per request, in order of due time."""
    ok = records.ok
    gaps = records.gaps.per_request if isinstance(records.gaps, ExactGaps) else []
    return clean(
        {
            "input_lens": records.prompt_tokens.tolist(),
            "output_lens": np.where(ok, records.output_tokens, 0).tolist(),
            "ttfts": np.nan_to_num(records.ttft).tolist(),
            "itls": [one.tolist() for one in gaps],
            "start_times": records.sent.tolist(),
            "scheduled_times": records.scheduled.tolist(),
            "latencies": np.nan_to_num(records.e2e).tolist(),
            "errors": [
                "" if good else Outcome(kind).name.lower()
                for good, kind in zip(ok, records.outcome.tolist(), strict=True)
            ],
            "outcomes_per_request": [Outcome(kind).name.lower() for kind in records.outcome.tolist()],
            "cached_tokens": records.cached_tokens.tolist(),
            "tenants": [records.tenants[index] for index in records.tenant.tolist()],
        }
    )


def latencies(stretch: Stretch) -> dict[str, float]:
    """mean/median/std/pXX of ttft, tpot, itl and e2el in ms."""
    values: dict[str, float] = {}
    for name, one in (("ttft", stretch.ttft), ("tpot", stretch.tpot), ("itl", stretch.itl), ("e2el", stretch.e2e)):
        values |= {
            f"mean_{name}_ms": one.mean * _MS,
            f"median_{name}_ms": one.median * _MS,
            f"std_{name}_ms": one.std * _MS,
        }
        values |= {f"p{percent:g}_{name}_ms": found.value * _MS for percent, found in one.percentiles.items()}
    return values


def stretch_values(stretch: Stretch) -> dict[str, Any]:
    """A stretch of the run with intervals."""
    values: dict[str, Any] = {
        "begin_s": stretch.window.begin,
        "end_s": stretch.window.end,
        "settled": stretch.window.settled,
        "outcomes": stretch.outcomes,
        "request_throughput": stretch.request_rate,
        "arrival_rate": stretch.arrival_rate,
        "output_throughput": stretch.output_rate,
        "total_token_throughput": stretch.total_rate,
        "cached_tokens": stretch.cached_tokens,
        "little": {
            "in_flight": stretch.little.in_flight,
            "rate_times_time": stretch.little.product,
            "residual": stretch.little.residual,
        },
    }
    for name in ("ttft", "tpot", "itl", "e2e", "client_ttft", "lateness"):
        values[f"{name}_ms"] = distribution_values(getattr(stretch, name))
    if stretch.goodput is not None:
        good = stretch.goodput
        values["goodput"] = {
            "targets_ms": {name: limit * _MS for name, limit in good.targets.items()},
            "share": good.share,
            "share_per_target": good.per_target,
            "requests_per_second": good.rate,
            "output_tokens_per_second": good.tokens_per_second,
        }
    return values


def distribution_values(one: Distribution) -> dict[str, Any]:
    """In ms, with the 95 % interval of each percentile."""
    return {
        "count": one.count,
        "mean": one.mean * _MS,
        "std": one.std * _MS,
        "min": one.minimum * _MS,
        "max": one.maximum * _MS,
        "percentiles": {
            f"p{percent:g}": {
                "value": found.value * _MS,
                "low": None if found.low is None else found.low * _MS,
                "high": None if found.high is None else found.high * _MS,
            }
            for percent, found in one.percentiles.items()
        },
    }


def clean(values: dict[str, Any]) -> dict[str, Any]:
    """The same with NaN and infinity as null, which JSON has no word for."""
    return {key: _clean(inner) for key, inner in values.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return clean(value)
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
