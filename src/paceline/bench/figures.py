"""Figures of runs, as the plain data plotly.js takes. Nothing here knows whether a run was real or simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.workload.metrics import in_flight
from paceline.workload.records import ExactGaps, Records
from paceline.workload.run import Run

COLORS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#0891b2", "#ca8a04", "#be185d", "#4d7c0f", "#475569")
MOST_POINTS = 4000
MOST_NAMED = 4
"""Runs that a plot's own legend has room for."""
_UNITS = {
    "ttft": ("Time to first token", "ttft"),
    "tpot": ("Time per output token", "tpot"),
    "e2e": ("End to end", "e2e"),
}
Floats = NDArray[np.float64]
Data = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A plot and what a reader should see in it."""

    title: str
    caption: str
    data: list[Data]
    layout: Data
    width: int = 1
    """Columns of the page's grid of three: 1, 2 or 3."""


def color(index: int) -> str:
    return COLORS[index % len(COLORS)]


def cdfs(runs: Sequence[Run]) -> list[Figure]:
    """TTFT, TPOT and E2E: the share of requests at or below a time."""
    figures = []
    for name, (title, attribute) in _UNITS.items():
        data: list[Data] = []
        for index, run in enumerate(runs):
            window = run.summary.steady.window
            records = run.records
            kept = records.select(records.ok & (records.scheduled >= window.begin) & (records.scheduled <= window.end))
            values = getattr(kept, attribute)
            values = np.sort(values[~np.isnan(values)]) * 1e3
            if not values.size:
                continue
            at = np.unique(np.linspace(0, values.size - 1, 400).astype(int))
            line = _line(run.label, values[at], (at + 1) / values.size * 100, index, shape="hv")
            line["hovertemplate"] = "%{y:.1f}% within %{x:.4~r} ms<extra>" + _safe(run.label) + "</extra>"
            data.append(line)
        shapes = [_limit(limit * 1e3) for limit in _targets(runs, name)]
        layout = _layout("ms", "% of requests", log_x=True, shapes=shapes, legend=1 < len(runs) <= MOST_NAMED)
        layout["yaxis"]["range"] = [0, 101]
        layout["xaxis"] |= _ticks([value for line in data for value in line["x"]] + _milliseconds(runs, name))
        caption = f"{_part(runs)} Dashed: the target." if shapes else _part(runs)
        caption += " Colours as in the table." if len(runs) > MOST_NAMED else ""
        figures.append(Figure(title, caption, data, layout))
    return figures


def timeline(run: Run) -> Figure:
    """Requests in the system over time, the server's queue and KV."""
    at, count = in_flight(run.records, 300)
    data = [_line("in flight (client)", at, count, 9, shape="hv", width=1.5, dash="dot")]
    line = run.timeline
    if len(line):
        running = _line("running", line.at, line.running, 0, shape="hv", width=1.5)
        waiting = _line("waiting", line.at, line.waiting, 1, shape="hv", width=1.5)
        data += [
            {**running, "stackgroup": "server", "fillcolor": "rgba(37,99,235,0.25)"},
            {**waiting, "stackgroup": "server", "fillcolor": "rgba(234,88,12,0.3)"},
            {**_line("KV in use", line.at, [value * 100 for value in line.kv], 2, width=2), "yaxis": "y2"},
        ]
    layout = _layout("seconds", "requests", shapes=_steady(run), legend=True)
    if len(line):
        layout["yaxis2"] = {
            "title": {"text": "% of KV", "standoff": 8},
            "overlaying": "y",
            "side": "right",
            "range": [0, 102],
            "tickvals": [0, 25, 50, 75, 100],
            "showgrid": False,
            "zeroline": False,
        }
        layout["margin"]["r"] = 62
    caption = "In flight as the client sees it; the server has no gauges to read."
    if len(line):
        caption = "Running and waiting by the server's own gauges, in flight by the client."
    caption += " Grey: the steady part." if run.summary.steady.window.settled else ""
    return Figure("In the system", caption, data, layout, 3)


def first_tokens(run: Run) -> Figure:
    """TTFT of each request by when it was due."""
    records, picked = _thinned(run.records)
    data: list[Data] = []
    names = records.tenants if len(records.tenants) > 1 else ["answered"]
    for index, name in enumerate(names):
        mine = records.ok & ((records.tenant == index) if len(names) > 1 else True)
        data.append(_dots(name or "-", records.scheduled[mine], records.ttft[mine] * 1e3, index))
    failed = ~records.ok
    if failed.any():
        stay = np.nan_to_num(records.last - records.scheduled)
        data.append({**_dots("failed", records.scheduled[failed], stay[failed] * 1e3, 4, symbol="x")})
    layout = _layout("due at, seconds", "TTFT, ms", log_y=True, shapes=_steady(run), legend=len(data) > 1)
    layout["yaxis"] |= _ticks([value for dots in data for value in dots["y"]])
    caption = "One dot a request, from when it was due." + picked
    return Figure("First tokens over time", caption, data, layout, 2)


def output_rate(run: Run) -> Figure:
    """Output tokens per second over time."""
    records = run.records
    end = float(np.nanmax(records.last)) if not np.isnan(records.last).all() else 1.0
    width = max(end / 60, 0.5)
    edges = np.arange(0, end + width, width)
    rate = _emitted(records, edges) / width
    data = [_line("output tokens/s", edges[:-1] + width / 2, rate, 0, width=1.5)]
    data[0] |= {"fill": "tozeroy", "fillcolor": "rgba(37,99,235,0.12)"}
    layout = _layout("seconds", "tokens/s", shapes=_steady(run))
    return Figure("Output", f"Tokens that reached the client, in bins of {width:.2g} s.", data, layout)


def lengths(run: Run) -> Figure:
    """TTFT by prompt length: whether short requests wait behind long ones."""
    ok = run.records.select(run.records.ok)
    records, picked = _thinned(ok)
    data = [_dots("requests", records.prompt_tokens, records.ttft * 1e3, 0)]
    layout = _layout("prompt tokens", "TTFT, ms", log_y=True, log_x=_wide(records.prompt_tokens))
    layout["yaxis"] |= _ticks(data[0]["y"])
    if _wide(records.prompt_tokens):
        layout["xaxis"] |= _ticks(data[0]["x"])
    return Figure("First token by prompt length", "Flat: waiting counts, not work." + picked, data, layout)


def token_gaps(run: Run) -> Figure:
    """Histogram of inter-token gaps."""
    values, weights = _gaps(run.records)
    if not values.size:
        return Figure("Gaps between tokens (ITL)", "No answer had two tokens.", [], _layout("ms", ""))
    values = np.maximum(values * 1e3, 1e-3)
    edges = np.geomspace(float(values.min()) * 0.99, float(values.max()) * 1.01, 60)
    counts = np.histogram(values, edges, weights=weights)[0] / weights.sum() * 100
    centres = np.sqrt(edges[1:] * edges[:-1])
    bar = {
        "type": "scatter",
        "mode": "lines",
        "line": {"shape": "hvh", "color": color(0), "width": 1.5},
        "fill": "tozeroy",
        "fillcolor": "rgba(37,99,235,0.15)",
        "x": _short(centres),
        "y": _short(counts),
        "hovertemplate": "%{x:.4~r} ms: %{y:.2f}%<extra></extra>",
    }
    caption = "All requests pooled. A second hump: steps that carry someone's prefill."
    layout = _layout("ms", "% of gaps", log_x=True)
    layout["xaxis"] |= _ticks(_short(centres))
    return Figure("Gaps between tokens (ITL)", caption, [bar], layout)


def _gaps(records: Records) -> tuple[Floats, Floats]:
    """(seconds, how many of them), of every request."""
    if isinstance(records.gaps, ExactGaps):
        values = records.gaps.pooled()
        return values, np.ones(values.size)
    if records.gaps is None:
        return np.zeros(0), np.zeros(0)
    known = np.flatnonzero(records.gaps.counts)
    return records.gaps.centres[known], records.gaps.counts[known].astype(np.float64)


def tenants(run: Run) -> Figure:
    """Output tokens each tenant has got so far."""
    records = run.records
    end = float(np.nanmax(records.last))
    edges = np.linspace(0, end, 160)
    data = []
    for index, name in enumerate(records.tenants):
        mine = records.select(records.tenant == index)
        served = np.concatenate([[0.0], np.cumsum(_emitted(mine, edges))])
        data.append(_line(name or "-", edges, served, index))
    layout = _layout("seconds", "tokens", legend=True)
    caption = "Output tokens served so far; parallel lines while all are waiting mean fair shares."
    return Figure("Service by tenant", caption, data, layout, 2)


def bars(runs: Sequence[Run]) -> list[Figure]:
    """Throughput and tails of several runs beside each other."""
    names = [run.label for run in runs]
    colors = [color(index) for index in range(len(runs))]
    wanted = (
        ("Output tokens per second", "tokens/s", [run.summary.steady.output_rate for run in runs]),
        ("TTFT, 99th percentile", "ms", [run.summary.steady.ttft.at(99.0) * 1e3 for run in runs]),
        ("TPOT, 99th percentile", "ms", [run.summary.steady.tpot.at(99.0) * 1e3 for run in runs]),
    )
    figures = []
    for title, unit, values in wanted:
        shown = [None if math.isnan(value) else round(value, 3) for value in values]
        text = ["" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in shown]
        bar: Data = {"type": "bar", "x": names, "y": shown, "marker": {"color": colors}, "text": text}
        bar |= {"textposition": "outside", "cliponaxis": False, "hovertemplate": "%{x}: %{y:,.4~r}<extra></extra>"}
        layout = _layout("", unit)
        layout["xaxis"] |= {"tickangle": -30, "type": "category", "automargin": True}
        layout["margin"]["t"] = 24
        figures.append(Figure(title, _part(runs), [bar], layout))
    return figures


def against_rate(runs: Sequence[Run], knee: float | None = None) -> list[Figure]:
    """Latency and goodput by arrival rate: where the knee is."""
    ordered = sorted(runs, key=lambda run: run.summary.whole.arrival_rate)
    rates = [run.rate if math.isfinite(run.rate) else run.summary.whole.arrival_rate for run in ordered]
    shapes = [_limit(knee)] if knee is not None else []
    figures = []
    for name, (title, attribute) in _UNITS.items():
        data = []
        for index, percent in enumerate((50.0, 95.0, 99.0)):
            found = [getattr(run.summary.steady, attribute).at(percent) * 1e3 for run in ordered]
            data.append(_line(f"p{percent:g}", rates, found, index, mode="lines+markers"))
        lines = [_level(limit * 1e3) for limit in _targets(ordered, name)]
        layout = _layout("requests/s", "ms", log_y=True, shapes=shapes + lines, legend=True)
        layout["yaxis"] |= _ticks([value for line in data for value in line["y"]] + _milliseconds(ordered, name))
        figures.append(Figure(f"{title} by rate", "Dashed: the knee and the target." if shapes else "", data, layout))
    done = [run.summary.steady.request_rate for run in ordered]
    data = [
        _line("as asked", [0, max(rates)], [0, max(rates)], 9, dash="dot", width=1),
        _line("done", rates, done, 0, mode="lines+markers"),
    ]
    if any(run.summary.steady.goodput for run in ordered):
        good = [run.summary.steady.goodput.rate if run.summary.steady.goodput else math.nan for run in ordered]
        data.append(_line("good", rates, good, 2, mode="lines+markers"))
    layout = _layout("requests/s asked", "requests/s", shapes=shapes, legend=True)
    figures.append(
        Figure("Requests done by rate", "Where the blue line leaves the dotted one, the server is full.", data, layout)
    )
    return figures


def _part(runs: Sequence[Run]) -> str:
    settled = all(run.summary.steady.window.settled for run in runs)
    return "Steady part of the run." if settled else "The whole run, where it was too short for a steady part."


def _targets(runs: Sequence[Run], name: str) -> list[float]:
    found = {run.summary.whole.goodput.targets.get(name) for run in runs if run.summary.whole.goodput}
    return sorted(limit for limit in found if limit is not None)


def _milliseconds(runs: Sequence[Run], name: str) -> list[float | None]:
    return [limit * 1e3 for limit in _targets(runs, name)]


def _ticks(values: Sequence[float | None]) -> Data:
    """Marks of a logarithmic axis: 1, 2, 5, 10, ... as full numbers, or powers of ten where those would crowd."""
    known = [value for value in values if value is not None and value > 0]
    if not known:
        return {}
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    span = math.log10(max(known) / min(known))
    steps = (
        (1, 1.2, 1.5, 2, 3, 4, 5, 6, 8) if span < 0.7 else (1, 2, 5) if span < 1.6 else (1, 3) if span < 2.5 else (1,)
    )
    marks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    text = [f"{mark:,.0f}" if mark >= 100 else f"{mark:.3g}" for mark in marks]
    pad = 0.04 * max(span, 0.2)
    return {
        "tickvals": marks,
        "ticktext": text,
        "range": [math.log10(min(known)) - pad, math.log10(max(known)) + pad],
    }


def _emitted(records: Records, edges: Floats) -> Floats:
    """Output tokens per bin, from exact gaps where there are some, else spread evenly over each answer."""
    if isinstance(records.gaps, ExactGaps):
        stamps, weights = [], []
        for first, gaps, tokens in zip(records.first, records.gaps.per_request, records.output_tokens, strict=True):
            if not math.isnan(first):
                stamps.append(first + np.concatenate([[0.0], np.cumsum(gaps)]))
                weights.append(np.full(gaps.size + 1, tokens / (gaps.size + 1)))
        if not stamps:
            return np.zeros(edges.size - 1)
        return np.histogram(np.concatenate(stamps), edges, weights=np.concatenate(weights))[0]
    known = ~np.isnan(records.first) & ~np.isnan(records.last)
    first, last, tokens = records.first[known], records.last[known], records.output_tokens[known].astype(float)
    upto = np.zeros(edges.size)
    for position, edge in enumerate(edges):
        share = np.clip((edge - first) / np.maximum(last - first, 1e-9), 0, 1)
        upto[position] = float((tokens * share).sum())
    return np.diff(upto)


def _thinned(records: Records) -> tuple[Records, str]:
    if len(records) <= MOST_POINTS:
        return records, ""
    mask = np.zeros(len(records), bool)
    mask[np.linspace(0, len(records) - 1, MOST_POINTS).astype(int)] = True
    return records.select(mask), f" {MOST_POINTS:,} of {len(records):,} requests, evenly picked."


def _line(
    name: str,
    x: Any,
    y: Any,
    index: int,
    *,
    shape: str = "linear",
    width: float = 2,
    dash: str = "solid",
    mode: str = "lines",
) -> Data:
    line = {"color": color(index), "width": width, "dash": dash, "shape": shape}
    return {"type": "scatter", "mode": mode, "name": _safe(name), "x": _short(x), "y": _short(y), "line": line}


def _dots(name: str, x: Any, y: Any, index: int, symbol: str = "circle") -> Data:
    marker = {"color": color(index), "size": 5, "opacity": 0.6, "symbol": symbol}
    return {
        "type": "scattergl",
        "mode": "markers",
        "name": _safe(name),
        "x": _short(x),
        "y": _short(y),
        "marker": marker,
    }


def _short(values: Any) -> list[float | None]:
    """Five digits are plenty for a plot, and JSON has no NaN."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def _steady(run: Run) -> list[Data]:
    """A grey box over the steady part, where there is one."""
    window = run.summary.steady.window
    if not window.settled:
        return []
    box = {"type": "rect", "xref": "x", "yref": "paper", "x0": window.begin, "x1": window.end, "y0": 0, "y1": 1}
    return [{**box, "fillcolor": "rgba(100,116,139,0.08)", "line": {"width": 0}, "layer": "below"}]


def _limit(x: float) -> Data:
    line = {"color": "#64748b", "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}


def _level(y: float) -> Data:
    line = {"color": "#64748b", "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _layout(
    x: str, y: str, *, log_x: bool = False, log_y: bool = False, shapes: list[Data] | None = None, legend: bool = False
) -> Data:
    grid = {
        "gridcolor": "#e2e8f0",
        "zerolinecolor": "#e2e8f0",
        "linecolor": "#cbd5e1",
        "ticks": "outside",
        "ticklen": 4,
    }
    logged = {"type": "log"}
    return {
        "xaxis": {**grid, "title": {"text": x}, **(logged if log_x else {})},
        "yaxis": {
            **grid,
            "title": {"text": y, "standoff": 8},
            "automargin": True,
            "rangemode": "tozero",
            **(logged if log_y else {}),
        },
        "shapes": shapes or [],
        "showlegend": legend,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"l": 56, "r": 16, "t": 34 if legend else 14, "b": 46},
    }


def _wide(values: Any) -> bool:
    return len(values) > 0 and float(np.max(values)) > 8 * max(float(np.min(values)), 1.0)


def _safe(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
