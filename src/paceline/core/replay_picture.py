"""A replay as a picture (SVG): one lane per request, one column per step, disciplines below each other.

Every cell has a tooltip: what ran, or why the request waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

LANE, GAP = 18, 3  # pixels: height of a lane, and between two
LABEL, WIDTH, MARGIN = 84, 900, 12  # pixels: room for names, for all steps, around everything
LOAD = 34  # pixels: height of the bars of tokens per step
NARROWEST, WIDEST = 5.0, 30.0  # pixels of a step
TEXT_FROM = 17.0  # pixels of a step from which on numbers are written into it
WRITTEN_EVERY = 5  # steps between two numbers below the lanes

COLOURS = {
    "prefill": ("#4c78a8", "prompt tokens are computed (how many)"),
    "decode": ("#54a24b", "one token is generated"),
    "holds": ("#f2cf5b", "holds its place and does nothing"),
    "waits": ("#e3e3e3", "waits"),
    "evicted": ("#e45756", "is preempted"),
    "out": ("#f5b7b1", "waits to be resumed"),
}


@dataclass
class Lane:
    """What became of a sequence: by step, a key of COLOURS, a short text and a tooltip."""

    cells: dict[int, tuple[str, str, str]] = field(default_factory=dict)


@dataclass
class Panel:
    """A replay, ready to be drawn. `loads`: tokens of each step that had any."""

    name: str
    lanes: dict[str, Lane] = field(default_factory=dict)
    loads: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    caption: str = ""

    @property
    def height(self) -> int:
        return 24 + len(self.lanes) * (LANE + GAP) + LOAD + 22


def panel(name: str, lines: Iterable[Mapping[str, Any]], prompts: Mapping[str, int], slots: int) -> Panel:
    """`lines` as `replay` yields them, `prompts` the prompt tokens of each request, `slots` that may run at once."""
    made = Panel(name)
    computed: dict[str, int] = {}
    evicted: set[str] = set()
    ran = 0
    for line in lines:
        if "summary" in line:
            made.caption = _caption(line["summary"], ran, slots * max(1, made.steps))
            continue
        step, scheduled = line["step"], dict(line["scheduled"])
        made.steps = step + 1
        made.loads[step] = sum(scheduled.values())
        ran += len(scheduled)
        computed.update(line["cached"])
        now = dict(line["preempted"])
        evicted |= set(now)
        evicted -= set(scheduled)
        for one in dict.fromkeys([*scheduled, *now, *line["running"], *line["waiting"]]):
            cell = _cell(one, step, line, scheduled, now, evicted, computed, prompts)
            made.lanes.setdefault(one, Lane()).cells[step] = cell
    return made


def _cell(
    one: str,
    step: int,
    line: Mapping[str, Any],
    scheduled: Mapping[str, int],
    now: Mapping[str, str],
    evicted: set[str],
    computed: dict[str, int],
    prompts: Mapping[str, int],
) -> tuple[str, str, str]:
    at = f"step {step}: {one} "
    if one in scheduled:
        count, before = scheduled[one], computed.get(one, 0)
        computed[one] = before + count
        cached = f", {line['cached'][one]} more from the cache" if line["cached"].get(one) else ""
        if before >= prompts.get(one.split("#")[0], 0) and count == 1:
            return "decode", "", at + "generates a token"
        return "prefill", str(count), f"{at}computes {count} tokens{cached}"
    if one in now:
        return "evicted", "", f"{at}is preempted ({now[one]})"
    why = line["why"].get(one, "")
    if one in line["running"]:
        return "holds", "", at + (why or "holds its place and is given no token")
    return ("out" if one in evicted else "waits"), "", f"{at}waits: {why}" if why else at + "waits"


def _caption(summary: Mapping[str, Any], ran: int, places: int) -> str:
    said = [f"{summary['steps']} steps", f"{100 * ran / places:.0f} % of all slots compute"]
    if summary["preemptions"]:
        said.append(f"{summary['preemptions']} preempted, {summary['recomputed_tokens']} tokens computed again")
    if summary["cache_hit_tokens"]:
        said.append(f"{summary['cache_hit_tokens']} prompt tokens from the cache")
    return ", ".join(said)


def draw(panels: list[Panel]) -> str:
    """The SVG text. All panels have one scale of steps and one of tokens."""
    steps = max(1, *(one.steps for one in panels))
    step_width = min(WIDEST, max(NARROWEST, WIDTH / steps))
    most = max([1, *(load for one in panels for load in one.loads.values())])
    width = round(2 * MARGIN + LABEL + max(steps * step_width, 640.0))
    parts, top = [], MARGIN
    for one in panels:
        parts += _panel(one, top, step_width, most)
        top += one.height
    parts += _legend(top)
    height = top + 40 + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11" fill="#222">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def _panel(one: Panel, top: int, step_width: float, most: int) -> list[str]:
    parts = [
        f'<text x="{MARGIN}" y="{top + 13}" font-weight="bold" font-size="13">{escape(one.name)}'
        f'<tspan font-weight="normal" font-size="11" dx="10">{escape(one.caption)}</tspan></text>'
    ]
    y = top + 24
    for name, lane in one.lanes.items():
        parts.append(f'<text x="{MARGIN}" y="{y + 13}">{escape(name)}</text>')
        parts += [_rect(step, y, step_width, *cell) for step, cell in lane.cells.items()]
        y += LANE + GAP
    parts.append(f'<text x="{MARGIN}" y="{y + 13}" fill="#777">tokens a step</text>')
    for step, load in one.loads.items():
        tall = round(load / most * (LOAD - 4), 1)
        x = MARGIN + LABEL + step * step_width
        parts.append(
            f'<rect x="{x:.1f}" y="{y + LOAD - tall:.1f}" width="{step_width - 1:.1f}" height="{tall}" fill="#bbb">'
            f"<title>step {step}: {load} tokens</title></rect>"
        )
    for step in range(0, one.steps, WRITTEN_EVERY):
        x = MARGIN + LABEL + (step + 0.5) * step_width
        parts.append(f'<text x="{x:.1f}" y="{y + LOAD + 11}" text-anchor="middle" fill="#777">{step}</text>')
    return parts


def _rect(step: int, y: int, step_width: float, kind: str, text: str, tooltip: str) -> str:
    x = MARGIN + LABEL + step * step_width
    rect = (
        f'<rect x="{x:.1f}" y="{y}" width="{step_width - 1:.1f}" height="{LANE}" rx="2" fill="{COLOURS[kind][0]}">'
        f"<title>{escape(tooltip)}</title></rect>"
    )
    if not text or step_width < TEXT_FROM:
        return rect
    return (
        rect + f'<text x="{x + step_width / 2 - 0.5:.1f}" y="{y + 13}" text-anchor="middle" fill="#fff">{text}</text>'
    )


def _legend(top: int) -> list[str]:
    parts = []
    for number, (colour, meaning) in enumerate(COLOURS.values()):
        x, y = MARGIN + 230 * (number % 3), top + 18 * (number // 3)
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="{y + 10}">{escape(meaning)}</text>')
    return parts
