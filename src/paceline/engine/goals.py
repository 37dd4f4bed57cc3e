"""Tuning by goal: what a practitioner would set for it, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.core.config import SchedulerConfig
from paceline.core.discipline import Discipline
from paceline.core.disciplines import discipline as discipline_named
from paceline.errors import ConfigError

UP, DOWN = "up", "down"
ORDER = "order"
BUDGET = "max_num_batched_tokens"


@dataclass(frozen=True)
class Choice:
    """One turn of one knob. `only` up or down: a value that lies further that way already stays."""

    setting: str  # of the scheduler, "order", or a knob of the discipline
    value: Any
    why: str
    only: str = ""


GOALS: dict[str, tuple[Choice, ...]] = {
    "ttft": (
        Choice("enable_prefix_caching", True, "what a prompt shares with earlier ones is not computed again"),
        Choice("max_num_batched_tokens", 4096, "larger chunks: a prompt takes fewer steps", UP),
        Choice("long_prefill_token_threshold", 0, "a prompt may take all of a step that decodes leave"),
        Choice(ORDER, "hrrn", "little uncached work goes first, and who waits moves up"),
        Choice("max_queue_wait", 30.0, "a short queue: who would wait longer is told at once when to come back"),
    ),
    "tpot": (
        Choice("max_num_seqs", 64, "a smaller batch steps faster", DOWN),
        Choice("max_num_batched_tokens", 512, "prompts get a smaller share of each step", DOWN),
        Choice("long_prefill_token_threshold", 256, "one long prompt does not fill a step"),
        Choice("watermark", 0.1, "headroom: running sequences rarely lose their KV", UP),
        Choice("how", "recompute", "no swapping beside the steps"),
    ),
    "tail": (
        Choice(ORDER, "vtc", "a fair order: nobody waits for a neighbour's backlog"),
        Choice("max_num_seqs", 64, "a smaller batch varies less", DOWN),
        Choice("max_num_batched_tokens", 1024, "no step is much longer than the others", DOWN),
        Choice("long_prefill_token_threshold", 512, "one long prompt does not fill a step"),
        Choice("watermark", 0.15, "headroom: what runs is hardly ever preempted", UP),
        Choice("how", "recompute", "swapping off"),
    ),
    "throughput": (
        Choice("max_num_batched_tokens", 8192, "larger steps use the device better", UP),
        Choice("max_num_seqs", 1024, "fill the memory: weights are read once for the whole batch", UP),
        Choice("watermark", 0.0, "no KV stays idle", DOWN),
        Choice("enable_prefix_caching", True, "what a prompt shares with earlier ones is not computed again"),
        Choice(ORDER, "lpm", "who shares most with the cache goes first, so that prefixes are computed once"),
    ),
    "fairness": (
        Choice(ORDER, "vtc", "each tenant that waits gets its share of the tokens"),
        Choice("buckets", (128, 512, 2048), "short prompts do not share a prefill with long ones"),
        Choice("long_prefill_token_threshold", 512, "one long prompt does not fill a step"),
    ),
}


@dataclass(frozen=True)
class Tuning:
    """What a goal made of the settings given; `lines` say what was set and why, or why not."""

    row: Discipline
    settings: Mapping[str, Any]  # of SchedulerConfig
    lines: list[str] = field(default_factory=list)


def tune(
    goal: str | None, discipline: str, order: str | None, knobs: Mapping[str, Any], settings: Mapping[str, Any]
) -> Tuning:
    """Set for `goal` what was not given, as far as the discipline takes it. ConfigError for what was given wrong."""
    row = discipline_named(discipline, order).with_knobs(knobs)
    if goal is None:
        return Tuning(row, settings)
    if goal not in GOALS:
        raise ConfigError("--optimize", goal, "one of " + ", ".join(GOALS))
    tuning = Tuning(row, dict(settings))
    given = {*settings, *knobs, *([ORDER] if order is not None else [])}
    for choice in GOALS[goal]:
        tuning = _apply(tuning, choice, given, knobs)
    return tuning


def _apply(tuning: Tuning, choice: Choice, given: set[str], knobs: Mapping[str, Any]) -> Tuning:
    row, settings, name = tuning.row, tuning.settings, choice.setting
    now = _current(row, settings, name)
    said = f"{name} = {_short(choice.value)}: {choice.why}"
    if name in given:
        return _with(tuning, f"{name} stays {_short(now)}, as you set it")
    if name in row.fixed:
        return _with(tuning, f"{name} stays {_short(now)}: under {row.name} {row.fixed[name][1]}")
    if name == BUDGET and not _configured(row, settings).enable_chunked_prefill:
        return _with(tuning, f"{name} follows the longest prompt: {row.name} takes prompts whole")
    if now == choice.value or _lies_further(now, choice):
        return _with(tuning, f"{name} = {_short(now)}, as {row.name} has it: {choice.why}")
    try:
        if name == ORDER:
            row = row.with_order(choice.value)
            row = row.with_knobs({knob: value for knob, value in knobs.items() if knob in row.knobs()})
        elif name in row.knobs():
            row = row.with_knobs({name: choice.value})
        elif name in SchedulerConfig.__dataclass_fields__:
            settings = {**settings, name: choice.value}
        else:
            return tuning  # the discipline has no such knob
        row.check(_configured(row, settings))
    except ConfigError as error:
        return _with(tuning, f"{name} stays {_short(now)}: {error}")
    return Tuning(row, settings, [*tuning.lines, said])


def _current(row: Discipline, settings: Mapping[str, Any], name: str) -> Any:
    if name == ORDER:
        return row.order
    if name in row.knobs():
        return row.knobs()[name]
    return getattr(_configured(row, settings), name, None)


def _configured(row: Discipline, settings: Mapping[str, Any]) -> SchedulerConfig:
    return row.configure(num_blocks=1, max_model_len=1, **settings)


def _with(tuning: Tuning, line: str) -> Tuning:
    return Tuning(tuning.row, tuning.settings, [*tuning.lines, line])


def _short(value: Any) -> str:
    return "on" if value is True else "off" if value is False else str(value)


def _lies_further(now: Any, choice: Choice) -> bool:
    return bool(now > choice.value if choice.only == UP else choice.only == DOWN and now < choice.value)
