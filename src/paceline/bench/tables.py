"""Runs as tables on a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from paceline.bench.terminal import WholeTable
from paceline.workload.metrics import Stretch
from paceline.workload.percentiles import Distribution, Percentile
from paceline.workload.run import Run

_LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
_STYLE = {"invalid": "bold red", "warning": "yellow", "note": "dim"}


def print_run(console: Console, run: Run) -> None:
    """Everything about one run, but for its workload, which is told before it begins."""
    whole, steady = run.summary.whole, run.summary.steady
    server = plain(str(run.facts.get("server", "")))
    console.print(f"[bold]{plain(run.label)}[/]  arrivals: {plain(run.arrivals)} ({run.loop} loop); server: {server}")
    console.print(_outcome_line(whole))
    console.print(_rate_table(whole, steady, run))
    console.print(_latency_table(steady))
    if steady.goodput is not None:
        console.print(_goodput_table(whole, steady))
    if run.summary.per_tenant:
        console.print(_tenant_table(run))
    print_findings(console, [run])


def print_findings(console: Console, runs: Sequence[Run]) -> None:
    """What to know before believing the figures; what several runs have in common, once."""
    said: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for finding in run.findings:
            said.setdefault((finding.level, finding.text), []).append(run.label)
    for level in ("invalid", "warning", "note"):
        for (kind, text), labels in said.items():
            if kind == level and (level != "note" or len(labels) == len(runs)):
                whose = f"{', '.join(dict.fromkeys(labels))}: " if len(runs) > 1 and len(labels) < len(runs) else ""
                name = "NOT VALID" if level == "invalid" else level
                console.print(f"[{_STYLE[level]}]{name}:[/] {plain(whose + text)}", highlight=False)


def print_comparison(console: Console, runs: Sequence[Run], title: str = "") -> None:
    """Runs side by side, one a column, the best of each row in bold."""
    table = _table(title, "", *[run.label for run in runs])
    for name, higher, read, show in _comparison_rows(runs):
        values = [read(run.summary.steady, run) for run in runs]
        known = [value for value in values if not math.isnan(value)]
        best = (max(known) if higher else min(known)) if known and higher is not None and len(set(known)) > 1 else None
        cells = [f"[bold]{show(v)}[/]" if v == best else show(v) for v in values]
        table.add_row(name, *cells)
    console.print(table)


def print_rounds(console: Console, every: dict[str, list[Run]]) -> None:
    """Each round of each system, to show how far figures move by themselves."""
    count = max(len(runs) for runs in every.values())
    table = _table("", "output tokens/s, by round", *[str(number + 1) for number in range(count)], "TTFT p99, by round")
    for label, runs in every.items():
        rates = [number(run.summary.steady.output_rate) for run in runs]
        tails = ", ".join(milliseconds(run.summary.steady.ttft.at(99.0)) for run in runs)
        table.add_row(plain(label), *rates, tails)
    console.print(table)


Row = tuple[str, "bool | None", Callable[[Stretch, Run], float], Callable[[float], str]]


def _comparison_rows(runs: Sequence[Run]) -> Iterable[Row]:
    yield "output tokens/s", True, lambda s, r: s.output_rate, number
    yield "requests/s done", True, lambda s, r: s.request_rate, number
    for label, name in _LATENCIES:
        for percent in (50.0, 95.0, 99.0):
            yield f"{label} p{percent:g}", False, _reader(name, percent), milliseconds
    if any(run.summary.steady.goodput for run in runs):
        yield "good requests", True, lambda s, r: s.goodput.share if s.goodput else math.nan, share
        yield "goodput, requests/s", True, lambda s, r: s.goodput.rate if s.goodput else math.nan, number
    yield "in flight", None, lambda s, r: s.little.in_flight, number
    yield "from prefix cache", True, _cached, share
    yield "preemptions", False, lambda s, r: r.timeline.counters.get("num_preemptions", math.nan), number
    yield "failed", False, lambda s, r: float(r.summary.whole.total - r.summary.whole.outcomes["ok"]), number


def _reader(name: str, percent: float) -> Callable[[Stretch, Run], float]:
    return lambda stretch, run: getattr(stretch, name).at(percent)


def _cached(stretch: Stretch, run: Run) -> float:
    whole = run.summary.whole
    return math.nan if whole.cached_tokens is None else whole.cached_tokens / max(whole.input_tokens, 1)


def milliseconds(value: float) -> str:
    """Seconds as a short text."""
    if math.isnan(value):
        return "-"
    if value >= 10:
        return f"{value:.1f} s"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"


def number(value: float) -> str:
    """Three digits, or all of a larger number."""
    return "-" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def share(value: float) -> str:
    """Per cent."""
    return "-" if math.isnan(value) else f"{value:.1%}"


def interval(found: Percentile) -> str:
    """`low-high`; `?` for a side that the sample is too small for."""
    low = "?" if found.low is None else _short(found.low)
    high = "?" if found.high is None else _short(found.high)
    return f"{low}-{high}"


def _short(seconds: float) -> str:
    return f"{seconds:.3g}s" if seconds >= 1 else f"{seconds * 1e3:.3g}"


def _outcome_line(whole: Stretch) -> str:
    parts = [f"[bold]{count}[/] {name}" for name, count in whole.outcomes.items() if count or name == "ok"]
    return f"{whole.total} requests: " + ", ".join(parts)


def _rate_table(whole: Stretch, steady: Stretch, run: Run) -> WholeTable:
    table = _table("", "rates", "steady part", "whole run")
    rows: tuple[tuple[str, Callable[[Stretch], float]], ...] = (
        ("seconds", lambda s: s.window.length),
        ("requests/s due", lambda s: s.arrival_rate),
        ("requests/s done", lambda s: s.request_rate),
        ("output tokens/s", lambda s: s.output_rate),
        ("total tokens/s", lambda s: s.total_rate),
        ("mean in flight", lambda s: s.little.in_flight),
        ("rate x mean time (Little)", lambda s: s.little.product),
    )
    for name, read in rows:
        table.add_row(name, number(read(steady)), number(read(whole)))
    table.add_row("load", run.summary.stability.label, "")
    return table


def _latency_table(steady: Stretch) -> WholeTable:
    percents = sorted(steady.ttft.percentiles or steady.itl.percentiles)
    table = _table("", "latency, steady", "mean", *[f"p{percent:g}" for percent in percents])
    rows: list[tuple[str, Distribution]] = [(label, getattr(steady, name)) for label, name in _LATENCIES]
    for label, one in [*rows, ("TTFT from sending", steady.client_ttft), ("sent late by", steady.lateness)]:
        table.add_row(label, milliseconds(one.mean), *[milliseconds(one.at(percent)) for percent in percents])
        if label in ("TTFT", "TPOT", "E2E") and one.percentiles:
            bounds = [interval(one.percentiles[percent]) for percent in percents]
            table.add_row("  95 % interval", "", *bounds, style="dim")
    return table


def _goodput_table(whole: Stretch, steady: Stretch) -> WholeTable:
    table = _table("", "goodput", "target", "steady part", "whole run")
    good, all_good = steady.goodput, whole.goodput
    assert good is not None and all_good is not None
    for name, limit in good.targets.items():
        met, all_met = good.per_target[name], all_good.per_target[name]
        table.add_row(f"{name.upper()} met", milliseconds(limit), share(met), share(all_met))
    table.add_row("all met", "", share(good.share), share(all_good.share))
    table.add_row("good requests/s", "", number(good.rate), number(all_good.rate))
    table.add_row("their output tokens/s", "", number(good.tokens_per_second), number(all_good.tokens_per_second))
    return table


def _tenant_table(run: Run) -> WholeTable:
    table = _table("", "tenant", "requests", "output tokens/s", "TTFT p50", "TTFT p95", "TPOT p50", "E2E p95")
    for name, one in run.summary.per_tenant.items():
        latencies = [one.ttft.at(50.0), one.ttft.at(95.0), one.tpot.at(50.0), one.e2e.at(95.0)]
        table.add_row(plain(name or "-"), str(one.total), number(one.output_rate), *map(milliseconds, latencies))
    return table


def _table(title: str, *columns: str) -> WholeTable:
    return WholeTable(*map(plain, columns), title=plain(title))


def plain(text: str) -> str:
    return text.replace("[", "\\[")
