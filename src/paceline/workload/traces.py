"""Traces as files: which format a file has, and who reads it.

| format | file | times | blocks |
|---|---|---|---|
| csv | arrival_s, input_tokens, output_tokens (also model, tenant, session, priority) | seconds | - |
| azure | TIMESTAMP, ContextTokens, GeneratedTokens | dates | - |
| burstgpt | Timestamp, Request tokens, Response tokens, ... (6 or 8 columns, read by name) | seconds | - |
| mooncake | JSON lines: timestamp, input_length, output_length, hash_ids (also vLLM's timed_trace) | ms | 512 |
| bailian | the same with chat_id, turn, type | seconds | 16 |
| servegen | JSON with clients: rates and lengths to draw from | drawn | - |
| sharegpt | JSON list of conversations, or JSON lines of prompts | none | - |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.errors import did_you_mean
from paceline.workload import block_traces, conversations, csv_traces, servegen
from paceline.workload.arrivals import spread_ticks
from paceline.workload.requests import Workload, WorkloadError, check
from paceline.workload.trace_faults import Faults
from paceline.workload.trace_files import read_text, whole_json

FORMATS = ("csv", "azure", "burstgpt", "mooncake", "timed_trace", "bailian", "servegen", "sharegpt")
_BLOCKS = ("mooncake", "timed_trace", "bailian")
_TABLES = ("csv", "azure", "burstgpt")
_PROMPTS = ("prompt", "conversations", "conversation", "messages", "text")
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class ReadOptions:
    """How to read a trace."""

    format: str = "auto"
    block_size: int | None = None
    """Tokens per hash id; None: the format's own."""
    skip_bad_rows: bool = False
    """Leave rows out that make no sense, and count them, instead of refusing the file."""
    limit: int | None = None
    """Read this many requests at most."""
    spread_ticks: bool = False
    """Spread arrivals that sit on ticks evenly up to the next tick."""
    seed: int = 0
    start: float = 0.0
    """ServeGen: second of the day to start from."""
    duration: float | None = None
    """ServeGen: seconds to draw; default 600."""
    rate_scale: float = 1.0
    """ServeGen: all rates multiplied."""
    count_tokens: Callable[[str], int] | None = None
    """Text -> tokens; None: a quarter of the characters, and the workload says so."""
    max_output: int | None = None
    """Longer answers are cut to this."""


def shipped() -> list[str]:
    """Names of the traces that come with the package."""
    return sorted(path.name.split(".")[0] for path in DATA.iterdir() if path.suffix in (".gz", ".jsonl", ".csv"))


def find(name: str) -> Path:
    """A shipped trace by its name, or a path."""
    for path in sorted(DATA.iterdir()):
        if path.name.split(".")[0] == name:
            return path
    path = Path(name).expanduser()
    if not path.exists() and "/" not in name and "." not in name:
        known = f"there are {', '.join(shipped())}; or give a path"
        raise WorkloadError(f"no trace is called {name!r}; {known}{did_you_mean(name, shipped())}")
    return path


def read(source: str | Path, options: ReadOptions | None = None) -> Workload:
    """A workload from a file or the name of a shipped trace. WorkloadError says what is wrong, where and the mend."""
    options = options or ReadOptions()
    if options.format not in ("auto", *FORMATS):
        raise WorkloadError(f"trace format {options.format!r}: it must be auto or one of {', '.join(FORMATS)}")
    path = find(str(source))
    text = read_text(path)
    kind = detect(path, text) if options.format == "auto" else options.format
    _check_options(path, text, kind, options)
    faults = Faults(path, options.skip_bad_rows)
    if kind == "servegen":
        workload = servegen.generate(path, whole_json(path, text), options, faults)
    elif kind == "sharegpt":
        workload = conversations.read(path, text, options, faults)
    elif kind in _BLOCKS:
        workload = block_traces.read(path, text, kind, options, faults)
    else:
        workload = csv_traces.read(path, text, kind, options, faults)
    if not workload.requests:
        left = "; ".join(f"{rows} left out: {reason}" for reason, rows in faults.counts.items())
        raise WorkloadError(f"{path}: there is no request in it" + (f" ({left})" if left else ""))
    workload.source, workload.skipped = str(source), dict(faults.counts)
    workload.attribution = _ATTRIBUTION.get(path.name.split(".")[0], "")
    if options.spread_ticks and not workload.timed:
        raise WorkloadError(f"{path}: it has no times; leave --spread-ticks out")
    return check(_on_ticks(workload, options) if workload.timed else workload)


def detect(path: Path, text: str) -> str:
    """The format of a trace, from its first line. WorkloadError where it has none of them."""
    head = text.lstrip()[:20000]
    line = head.split("\n", 1)[0].lower()
    if head.startswith("["):
        return "sharegpt"
    if head.startswith("{"):
        if '"length_quantiles"' in head or '"quantile_probs"' in head:
            return "servegen"
        if '"input_length"' in line:
            return "bailian" if '"chat_id"' in line else "mooncake"
        if any(f'"{key}"' in line for key in _PROMPTS):
            return "sharegpt"
        raise WorkloadError(f"{path}, line 1: no input_length and no prompt; name the format with --trace-format")
    columns = [name.strip() for name in line.split(",")]
    if "contexttokens" in columns:
        return "azure"
    return "burstgpt" if {"request tokens", "response tokens", "log_type", "log type"} & set(columns) else "csv"


def _check_options(path: Path, text: str, kind: str, options: ReadOptions) -> None:
    """WorkloadError for a format that is not the file's, and for options that mean nothing in its format."""
    if options.format != "auto" and (looks := _other_family(path, text, kind)) is not None:
        mend = f"leave --trace-format out, or give --trace-format {looks}"
        raise WorkloadError(f"{path}: this is no {kind} trace, it looks like {looks}; {mend}")
    if options.block_size is not None and kind not in _BLOCKS:
        raise WorkloadError(f"{path}: a {kind} trace names no blocks; leave --block-size out")
    if (options.start or options.duration is not None) and kind != "servegen":
        text = "its requests are logged, not drawn for a stretch of time"
        raise WorkloadError(f"{path}: {text}; leave --trace-start and --trace-seconds out (--num-prompts takes fewer)")


def _other_family(path: Path, text: str, kind: str) -> str | None:
    """What the file looks like, where that is read by other rules than `kind`."""
    try:
        looks = detect(path, text)
    except WorkloadError:
        return None  # whoever reads it knows more
    line = text.lstrip().split("\n", 1)[0].lower()
    if looks == kind or any({looks, kind} <= set(family) for family in (_BLOCKS, _TABLES)):
        return None
    both = kind == "sharegpt" and looks in _BLOCKS and any(f'"{key}"' in line for key in _PROMPTS)
    return None if both else looks


def _on_ticks(workload: Workload, options: ReadOptions) -> Workload:
    at = workload.times()
    distinct = np.unique(at)
    if at.size < 40 or distinct.size < 2 or distinct.size > 0.6 * at.size:
        if options.spread_ticks:
            workload.notes.append("--spread-ticks changed nothing: the arrivals sit on no ticks")
        return workload
    tick = float(np.median(np.diff(distinct)))
    if options.spread_ticks:
        return workload.with_times(
            spread_ticks(at, options.seed), f"trace timestamps, spread within ticks of {tick:g} s"
        )
    workload.notes.append(
        f"arrivals sit on ticks of about {tick:g} s ({distinct.size} distinct times for {at.size} requests): replayed "
        "as they are, every tick is a burst that may never have happened; --spread-ticks spreads them"
    )
    return workload


_AZURE = "Azure LLM inference trace 2023 (Patel et al., Splitwise, ISCA 2024), CC-BY 4.0"
_MOONCAKE = "Mooncake traces (Qin et al., FAST 2025), Apache-2.0"
_SERVEGEN = "ServeGen (arXiv 2505.09999), Apache-2.0"
_ATTRIBUTION = {
    "azure2023_conv": _AZURE,
    "azure2023_code": _AZURE,
    "mooncake_conversation": _MOONCAKE,
    "mooncake_synthetic": _MOONCAKE,
    "mooncake_arxiv_mixed_93": _MOONCAKE,
    "burstgpt1_head400": "BurstGPT (Wang et al., KDD 2025), CC-BY 4.0",
    "arxiv_summarization_lengths": "Vidur's arXiv summarisation lengths (MLSys 2024), MIT",
    "servegen_m-large_day1": _SERVEGEN,
    "servegen_m-small_day1": _SERVEGEN,
    "servegen_deepseek-r1_h0-12": _SERVEGEN,
}
