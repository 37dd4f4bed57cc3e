"""One self-contained HTML page about one run or several: opens without a network, and can be mailed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.bench import figures
from paceline.bench.errors import BenchError
from paceline.bench.figures import Figure
from paceline.workload.metrics import Stretch
from paceline.workload.percentiles import Percentile
from paceline.workload.run import Run

_LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"), ("TTFT from sending", "client_ttft"))
_DEFINITIONS = (
    ("TTFT", "First token minus the moment the request was <em>due</em>: waiting in a busy client counts."),
    ("TPOT", "(last token - first token) / (tokens - 1), one value per request. GuideLLM and AIPerf call this ITL."),
    ("ITL", "Every gap between chunks with tokens, pooled over all requests: long answers weigh more."),
    ("E2E", "Last token minus the moment the request was due."),
    ("Goodput", "Requests per second that meet all targets. Failed ones never do; a one-token answer has TPOT 0."),
    (
        "Steady part",
        "From when the system has filled (a tenth of the arrivals, and the median stay) to the last arrival: without "
        "start-up and drain. Latencies of requests due in it; rates of what was finished or emitted in it.",
    ),
    (
        "[low, high]",
        "95 % confidence interval of the percentile by order statistics, widened by how alike neighbouring requests "
        "are. ? means that the sample is too small for a bound on that side.",
    ),
    (
        "Little's law",
        "Mean number in flight = arrival rate x mean time in the system; they differ where a load is not steady.",
    ),
)


def page(runs: Sequence[Run], title: str, lead: str = "", extra: Sequence[Figure] = (), contest: bool = True) -> str:
    """The page as text. `extra` figures come first; `lead` is a paragraph of HTML. `contest`: mark each row's best."""
    parts = [f"<h1>{escape(title)}</h1>", f"<p class=lead>{lead}</p>" if lead else ""]
    said = _findings(runs)
    if len(runs) > 1 or not runs[0].valid:
        parts.append(said)
    drawn: list[Figure] = list(extra)
    if len(runs) == 1:
        run = runs[0]
        parts += [_cards(run), said if run.valid else ""]
        drawn += [*figures.cdfs(runs), figures.timeline(run), figures.first_tokens(run), figures.output_rate(run)]
        if len(run.records.tenants) > 1:
            drawn.append(figures.tenants(run))
        drawn += [
            figures.lengths(run),
            replace(figures.token_gaps(run), width=3 if len(run.records.tenants) > 1 else 2),
        ]
        parts += [_grid(drawn), _tables(run)]
    else:
        parts.append(_comparison(runs, contest))
        parts.append(_grid([*drawn, *([] if extra else figures.bars(runs)), *figures.cdfs(runs)]))
        parts += [_one_of_many(run) for run in runs]
    parts += [_definitions(), f"<footer>Paceline {__version__}</footer>"]
    return (
        _DOCUMENT.replace("{title}", escape(title)).replace("{body}", "\n".join(parts)).replace("{plotly}", _plotly())
    )


def write(path: Path, text: str) -> Path:
    """Write the page; BenchError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error}") from None
    return path


def _plotly() -> str:
    try:
        import plotly  # noqa: F401
    except ModuleNotFoundError:
        raise BenchError("--html needs plotly, of the bench extra; pip install 'paceline[bench]'") from None
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _cards(run: Run) -> str:
    steady, whole = run.summary.steady, run.summary.whole
    failed = whole.total - whole.outcomes["ok"]
    cards = [
        ("Output", f"{_number(steady.output_rate)}", "tokens/s", f"{_number(steady.request_rate)} requests/s done"),
        ("TTFT p50", *_split(steady.ttft.at(50.0)), f"p99 {_ms(steady.ttft.at(99.0))}"),
        ("TPOT p50", *_split(steady.tpot.at(50.0)), f"p99 {_ms(steady.tpot.at(99.0))}"),
        ("E2E p50", *_split(steady.e2e.at(50.0)), f"p99 {_ms(steady.e2e.at(99.0))}"),
        (
            "Requests",
            f"{whole.outcomes['ok']:,}",
            f"of {whole.total:,}",
            f"{failed} failed" if failed else "all answered",
        ),
        ("Load", run.summary.stability.label, "", f"{steady.little.in_flight:.1f} in flight on average"),
    ]
    if steady.goodput is not None:
        good = steady.goodput
        limits = ", ".join(f"{name.upper()} {_ms(limit)}" for name, limit in good.targets.items())
        cards.insert(1, ("Good requests", f"{good.share:.1%}", "", f"{_number(good.rate)}/s within {limits}"))
    made = [
        f"<div class=card><span class=name>{escape(name)}</span><span class=value>{escape(value)}<small> {escape(unit)}"
        f"</small></span><span class=more>{escape(more)}</span></div>"
        for name, value, unit, more in cards
    ]
    return f"<p class=lead>{_what(run)}</p><div class=cards>{''.join(made)}</div>"


def _what(run: Run) -> str:
    facts = run.facts
    where = f"<b>{escape(str(facts.get('model_id', run.label)))}</b>"
    if facts.get("server"):
        where += f" on {escape(str(facts['server']))}"
    return f"{where}. {escape(run.workload)}. Arrivals: {escape(run.arrivals)} ({run.loop} loop)."


def _findings(runs: Sequence[Run]) -> str:
    said: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for finding in run.findings:
            said.setdefault((finding.level, finding.text), []).append(run.label)
    rows = []
    for level in ("invalid", "warning", "note"):
        for (kind, text), labels in said.items():
            if kind == level and (level != "note" or len(labels) == len(runs)):
                whose = f"<b>{escape(', '.join(labels))}:</b> " if len(runs) > 1 and len(labels) < len(runs) else ""
                name = "not valid" if level == "invalid" else level
                rows.append(f"<li class={level}><span>{name}</span><div>{whose}{escape(text)}</div></li>")
    return f"<h2>Before you believe the figures</h2><ul class=findings>{''.join(rows)}</ul>" if rows else ""


def _comparison(runs: Sequence[Run], contest: bool) -> str:
    rows: list[tuple[str, bool | None, list[float], Any]] = [
        ("output tokens/s", True, [run.summary.steady.output_rate for run in runs], _number),
        ("requests/s done", True, [run.summary.steady.request_rate for run in runs], _number),
    ]
    for label, name in _LATENCIES[:4]:
        for percent in (50.0, 95.0, 99.0):
            values = [getattr(run.summary.steady, name).at(percent) for run in runs]
            rows.append((f"{label} p{percent:g}", False, values, _ms))
    if any(run.summary.steady.goodput for run in runs):
        values = [run.summary.steady.goodput.share if run.summary.steady.goodput else math.nan for run in runs]
        rows.append(("good requests", True, values, lambda value: f"{value:.1%}"))
    rows.append(("in flight", None, [run.summary.steady.little.in_flight for run in runs], _number))
    failed = [float(run.summary.whole.total - run.summary.whole.outcomes["ok"]) for run in runs]
    rows.append(("failed", None, failed, _number))
    body = []
    for name, higher, values, show in rows:
        known = [value for value in values if not math.isnan(value)]
        best = None
        if contest and higher is not None and len(set(known)) > 1:
            best = max(known) if higher else min(known)
        cells = "".join(
            f"<td{' class=best' if value == best else ''}>{'-' if math.isnan(value) else show(value)}</td>"
            for value in values
        )
        body.append(f"<tr><th>{name}</th>{cells}</tr>")
    head = "".join(
        f"<th><i style='background:{figures.color(i)}'></i>{escape(run.label)}</th>" for i, run in enumerate(runs)
    )
    part = "steady part" if all(run.summary.steady.window.settled for run in runs) else "steady part, or whole run"
    return f"<div class=scroll><table><tr><th>{part}</th>{head}</tr>{''.join(body)}</table></div>"


def _one_of_many(run: Run) -> str:
    drawn = [figures.timeline(run)]
    if len(run.records.tenants) > 1:
        drawn += [figures.tenants(run), figures.lengths(run)]
    inside = f"<p class=lead>{_what(run)}</p>{_grid(drawn)}{_tables(run)}"
    return f"<details><summary>{escape(run.label)}</summary>{inside}</details>"


def _tables(run: Run) -> str:
    whole, steady = run.summary.whole, run.summary.steady
    percents = sorted(steady.ttft.percentiles or steady.itl.percentiles)
    head = "".join(f"<th>p{percent:g}</th>" for percent in percents)
    rows = []
    for label, name in _LATENCIES:
        one = getattr(steady, name)
        cells = "".join(f"<td>{_interval(one.percentiles.get(percent))}</td>" for percent in percents)
        rows.append(f"<tr><th>{label}</th><td>{_ms(one.mean)}</td>{cells}</tr>")
    part = "steady part" if steady.window.settled else "whole run"
    latency = f"<table><tr><th>latency, {part}</th><th>mean</th>{head}</tr>{''.join(rows)}</table>"
    parts = [f"<div class=scroll>{latency}</div>", _rates(whole, steady)]
    if whole.goodput is not None and steady.goodput is not None:
        parts.append(_goodput(whole, steady))
    if run.summary.per_tenant:
        parts.append(_tenants(run))
    facts = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(_fact(value))}</td></tr>" for name, value in run.facts.items()
    )
    counted = {name.replace("_", " "): value for name, value in run.timeline.counters.items() if value}
    counters = "".join(f"<tr><th>{escape(n)}</th><td>{_number(v)}</td></tr>" for n, v in counted.items())
    parts.append(f"<table class=facts>{facts}</table>")
    parts.append(f"<table><tr><th>server, over the run</th><th></th></tr>{counters}</table>" if counters else "")
    return f"<h2>Figures</h2><div class=tables>{''.join(parts)}</div>"


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{str(name).replace('_', ' ')} {_fact(one)}" for name, one in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rates(whole: Stretch, steady: Stretch) -> str:
    rows = [
        ("seconds", steady.window.length, whole.window.length),
        ("requests/s due", steady.arrival_rate, whole.arrival_rate),
        ("requests/s done", steady.request_rate, whole.request_rate),
        ("output tokens/s", steady.output_rate, whole.output_rate),
        ("total tokens/s", steady.total_rate, whole.total_rate),
        ("mean in flight", steady.little.in_flight, whole.little.in_flight),
        ("rate x mean time (Little)", steady.little.product, whole.little.product),
    ]
    body = "".join(f"<tr><th>{n}</th><td>{_number(a)}</td><td>{_number(b)}</td></tr>" for n, a, b in rows)
    ended = "".join(
        f"<tr><th>{n}</th><td>{steady.outcomes[n]:,}</td><td>{whole.outcomes[n]:,}</td></tr>" for n in whole.outcomes
    )
    return f"<table><tr><th>rates</th><th>steady part</th><th>whole run</th></tr>{body}{ended}</table>"


def _goodput(whole: Stretch, steady: Stretch) -> str:
    good, every = steady.goodput, whole.goodput
    assert good is not None and every is not None
    rows = "".join(
        f"<tr><th>{name.upper()} within {_ms(limit)}</th><td>{good.per_target[name]:.1%}</td>"
        f"<td>{every.per_target[name]:.1%}</td></tr>"
        for name, limit in good.targets.items()
    )
    rows += f"<tr><th>all of them</th><td>{good.share:.1%}</td><td>{every.share:.1%}</td></tr>"
    rows += f"<tr><th>good requests/s</th><td>{_number(good.rate)}</td><td>{_number(every.rate)}</td></tr>"
    return f"<table><tr><th>goodput</th><th>steady part</th><th>whole run</th></tr>{rows}</table>"


def _tenants(run: Run) -> str:
    rows = "".join(
        f"<tr><th>{escape(name or '-')}</th><td>{one.total}</td><td>{_number(one.output_rate)}</td>"
        f"<td>{_ms(one.ttft.at(50.0))}</td><td>{_ms(one.ttft.at(95.0))}</td><td>{_ms(one.tpot.at(50.0))}</td></tr>"
        for name, one in run.summary.per_tenant.items()
    )
    head = "<th>tenant</th><th>requests</th><th>output tokens/s</th><th>TTFT p50</th><th>TTFT p95</th><th>TPOT p50</th>"
    return f"<table><tr>{head}</tr>{rows}</table>"


def _grid(drawn: Sequence[Figure]) -> str:
    made = []
    for figure in drawn:
        payload = json.dumps({"data": figure.data, "layout": figure.layout}, allow_nan=False).replace("</", "<\\/")
        made.append(
            f"<figure class=w{figure.width}><h3>{escape(figure.title)}</h3><div class=plot></div>"
            f"<script type=application/json>{payload}</script>"
            f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
        )
    return f"<div class=grid>{''.join(made)}</div>"


def _definitions() -> str:
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in _DEFINITIONS)
    return f"<details><summary>What the words mean</summary><dl>{rows}</dl></details>"


def _ms(seconds: float) -> str:
    return " ".join(part for part in _split(seconds) if part)


def _split(seconds: float) -> tuple[str, str]:
    if math.isnan(seconds):
        return "-", ""
    if seconds >= 1:
        return (f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}"), "s"
    return (f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"), "ms"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _interval(found: Percentile | None) -> str:
    if found is None or math.isnan(found.value):
        return "-"
    if found.low is None and found.high is None:
        return _ms(found.value)
    low = "?" if found.low is None else _ms(found.low)
    high = "?" if found.high is None else _ms(found.high)
    return f"{_ms(found.value)}<small> [{low}, {high}]</small>"


_DOCUMENT = (resources.files("paceline.bench") / "report.html").read_text(encoding="utf-8")
