"""Several systems on one workload, in turns: A B A B, so that what drifts meets all of them."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.bench.errors import BenchError
from paceline.bench.server_process import ServerProcess
from paceline.bench.target import Target
from paceline.core.disciplines import ALIASES, DISCIPLINES, discipline
from paceline.errors import ConfigError
from paceline.workload.run import Finding, Run

Measure = Callable[[Target, str, int], Run]
"""Of a system, a title and the number of the round, from 0 on."""
MOST_SPREAD = 0.1
WITHOUT_FLAG = ("scheduler_reserve_full_isl",)
"""Settings of rows that `paceline serve` takes as knobs only."""


@dataclass(frozen=True)
class Contestant:
    """A system to compare: a server that runs, or the flags to start one with."""

    label: str
    url: str = ""
    flags: tuple[str, ...] = ()

    @contextlib.contextmanager
    def up(self, target: Target) -> Iterator[Target]:
        """The system as a target; one that is started here starts with an empty cache each time."""
        if self.url:
            yield replace(target, url=self.url)
            return
        with ServerProcess(*self.flags) as server:
            yield replace(target, url=server.url, model="", api_key=None)


def by_discipline(names: Sequence[str], model: str, more: str) -> list[Contestant]:
    """`paceline serve` under each discipline. BenchError for none, or one twice; ConfigError for one there is not.

    Each gets the settings of its own row of the table (token budget, most sequences, ...) unless `more` names them.
    """
    _distinct(names)
    try:
        given = shlex.split(more)
    except ValueError as error:
        raise ConfigError("--serve-args", more, f"flags as in a shell ({error})") from None
    if any(flag.split("=")[0] == "--discipline" for flag in given):
        raise ConfigError("--serve-args", more, "without --discipline: --disciplines says which are served")
    for name in names:
        if name not in DISCIPLINES and name not in ALIASES:
            raise ConfigError("--disciplines", name, "one of " + ", ".join([*DISCIPLINES, *ALIASES]))
    return [
        Contestant(name, flags=(model, "--discipline", name, *_own_settings(name, given), *given)) for name in names
    ]


def _own_settings(name: str, given: Sequence[str]) -> list[str]:
    row = discipline(name)
    settings = {**row.defaults, **{setting: value for setting, (value, _) in row.fixed.items()}}
    named = {flag.removeprefix("--no-").removeprefix("--").partition("=")[0] for flag in given if flag[:2] == "--"}
    if settings.get("enable_chunked_prefill") is False and "max-model-len" not in named:
        # Whole prompts: a step must have room for the longest one.
        budget = given[given.index("--max-num-batched-tokens") + 1] if "max-num-batched-tokens" in named else None
        settings["max_model_len"] = budget or settings.get("max_num_batched_tokens", 2048)
    flags: list[str] = []
    for setting, value in settings.items():
        flag = setting.replace("_", "-")
        if flag in named:
            continue
        if setting in WITHOUT_FLAG:
            if not any(setting in text.replace("-", "_") for text in given):
                flags += ["--knob", f"{setting}={json.dumps(value)}"]
        elif isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def by_url(texts: Sequence[str]) -> list[Contestant]:
    """Servers that run already, as URL or LABEL=URL."""
    pairs = [text.partition("=") if "=" in text.split("://")[0] else (text, "", text) for text in texts]
    _distinct([label for label, _, _ in pairs])
    return [Contestant(label, url=url) for label, _, url in pairs]


def in_turns(
    contestants: Sequence[Contestant], target: Target, rounds: int, measure: Measure
) -> tuple[list[Run], dict[str, list[Run]]]:
    """(the round with the median output rate of each, all rounds of each)."""
    every: dict[str, list[Run]] = {one.label: [] for one in contestants}
    for number in range(1, rounds + 1):
        for one in contestants:
            with one.up(target) as up:
                title = one.label if rounds == 1 else f"{one.label}, round {number} of {rounds}"
                every[one.label].append(replace(measure(up, title, number - 1), label=one.label))
    return [_shown(runs) for runs in every.values()], every


def _shown(runs: list[Run]) -> Run:
    ordered = sorted(runs, key=lambda run: run.summary.steady.output_rate)
    shown = ordered[(len(ordered) - 1) // 2]
    low, high = ordered[0].summary.steady.output_rate, ordered[-1].summary.steady.output_rate
    if high > 0 and (high - low) / high > MOST_SPREAD:
        shown.findings.append(
            Finding(
                "warning",
                f"its rounds differ: {low:,.0f} to {high:,.0f} output tokens/s; smaller differences between systems "
                "mean nothing here",
            )
        )
    return shown


def _distinct(names: Sequence[str]) -> None:
    if not names or not all(names):
        raise BenchError("there is nothing to compare; name --disciplines or --base-urls")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise BenchError(f"{twice} is named twice")
