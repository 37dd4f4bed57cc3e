"""Traces as files: which format a file has, and the readers of those with one row per request.

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
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from paceline.workload import conversations, servegen
from paceline.workload.arrivals import spread_ticks
from paceline.workload.requests import Parts, TimedRequest, Workload, WorkloadError, check
from paceline.workload.trace_files import Faults, count, csv_rows, json_lines, number, read_text, whole_json

FORMATS = ("csv", "azure", "burstgpt", "mooncake", "timed_trace", "bailian", "servegen", "sharegpt")
DATA = Path(__file__).parent / "data"
_COLUMNS = {
    "time": ("arrival_s", "timestamp", "arrival", "arrived_at", "arrival_time", "time"),
    "input": ("input_tokens", "contexttokens", "request tokens", "input_length", "num_prefill_tokens", "prompt_tokens"),
    "output": (
        "output_tokens",
        "generatedtokens",
        "response tokens",
        "output_length",
        "num_decode_tokens",
        "completion_tokens",
    ),
    "tenant": ("tenant", "user", "model"),
    "session": ("session", "session id", "session_id"),
    "priority": ("priority",),
}
_ZERO = "rows with 0 tokens"


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
        raise WorkloadError(f"no trace is called {name!r}; there are {', '.join(shipped())}, or give a path")
    return path


def read(source: str | Path, options: ReadOptions | None = None) -> Workload:
    """A workload from a file or the name of a shipped trace. WorkloadError says what is wrong, where and the mend."""
    options = options or ReadOptions()
    if options.format not in ("auto", *FORMATS):
        raise WorkloadError(f"trace format {options.format!r}: it must be auto or one of {', '.join(FORMATS)}")
    path = find(str(source))
    text = read_text(path)
    kind = detect(path, text) if options.format == "auto" else options.format
    faults = Faults(path, options.skip_bad_rows)
    if kind == "servegen":
        workload = servegen.generate(path, whole_json(path, text), options, faults)
    elif kind == "sharegpt":
        workload = conversations.read(path, text, options, faults)
    elif kind in ("mooncake", "timed_trace", "bailian"):
        workload = _read_blocks(path, text, kind, options, faults)
    else:
        workload = _read_csv(path, text, kind, options, faults)
    if not workload.requests:
        left = "; ".join(f"{rows} left out: {reason}" for reason, rows in faults.counts.items())
        raise WorkloadError(f"{path}: there is no request in it" + (f" ({left})" if left else ""))
    workload.source, workload.skipped = str(source), dict(faults.counts)
    workload.attribution = _ATTRIBUTION.get(path.name.split(".")[0], "")
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
        if any(f'"{key}"' in line for key in ("prompt", "conversations", "conversation", "messages", "text")):
            return "sharegpt"
        raise WorkloadError(f"{path}, line 1: no input_length and no prompt; name the format with --trace-format")
    columns = [name.strip() for name in line.split(",")]
    if "contexttokens" in columns:
        return "azure"
    return "burstgpt" if {"request tokens", "response tokens", "log_type", "log type"} & set(columns) else "csv"


def _read_csv(path: Path, text: str, kind: str, options: ReadOptions, faults: Faults) -> Workload:
    header, rows = csv_rows(path, text)
    found = {role: next((name for name in names if name in header), None) for role, names in _COLUMNS.items()}
    for role in ("input", "output"):
        if found[role] is None:
            raise WorkloadError(
                f"{path}, line 1: there is no column of {role} tokens; the columns are {', '.join(header)}, "
                f"and one of {', '.join(_COLUMNS[role])} is needed"
            )
    timed = found["time"] is not None
    requests: list[TimedRequest] = []
    clock = _Clock(path, faults)
    for line, row in rows:
        if options.limit is not None and len(requests) >= options.limit:
            break
        given = {role: row[name] for role, name in found.items() if name is not None}
        tokens_in = count(path, line, str(found["input"]), given["input"])
        tokens_out = count(path, line, str(found["output"]), given["output"])
        if kind == "burstgpt" and min(tokens_in, tokens_out) == 0:
            faults.counts["0 tokens: requests that failed when the trace was taken"] += 1
            continue
        if not _has_tokens(faults, line, tokens_in, tokens_out):
            continue
        at = clock.read(line, str(found["time"]), given["time"], 1.0) if timed else 0.0
        if at is None:
            continue
        requests.append(
            TimedRequest(
                str(len(requests)),
                at,
                tokens_in,
                _cut(tokens_out, options),
                parts=((-1 - len(requests), tokens_in),),
                tenant=given.get("tenant", ""),
                session=given.get("session", ""),
                priority=count(path, line, "priority", given.get("priority") or 0),
            )
        )
    return Workload(clock.relative(requests), path.name, _stamps(timed), timed)


def _read_blocks(path: Path, text: str, kind: str, options: ReadOptions, faults: Faults) -> Workload:
    size = options.block_size or (16 if kind == "bailian" else 512)
    unit = 1.0 if kind == "bailian" else 1e-3
    requests: list[TimedRequest] = []
    clock = _Clock(path, faults)
    extra = 0
    for line, row in json_lines(path, text):
        if options.limit is not None and len(requests) >= options.limit:
            break
        missing = [key for key in ("timestamp", "input_length", "output_length") if key not in row]
        if missing:
            raise WorkloadError(f"{path}, line {line}: there is no {missing[0]}; it has {', '.join(row)}")
        tokens_in = count(path, line, "input_length", row["input_length"])
        tokens_out = count(path, line, "output_length", row["output_length"])
        if not _has_tokens(faults, line, tokens_in, tokens_out):
            continue
        hashes = row.get("hash_ids") or []
        if hashes and len(hashes) * size < tokens_in:
            larger = -(-tokens_in // len(hashes))
            faults.row(
                line,
                "blocks do not cover the prompt",
                f"{len(hashes)} blocks of {size} tokens cover {len(hashes) * size} of {tokens_in}; "
                f"the trace has blocks of at least {larger} (--block-size)",
            )
            continue
        at = clock.read(line, "timestamp", row["timestamp"], unit)
        if at is None:
            continue
        parts = _block_parts(hashes, size, tokens_in) or ((-1 - len(requests), tokens_in),)
        extra += len(hashes) > len(parts)
        requests.append(
            TimedRequest(
                str(len(requests)),
                at,
                tokens_in,
                _cut(tokens_out, options),
                parts=parts,
                tenant=str(row.get("tenant", row.get("type", ""))),
                session=str(row.get("session", row.get("chat_id", ""))),
                turn=int(row.get("turn", 0) or 0),
                priority=int(row.get("priority", 0) or 0),
            )
        )
    workload = Workload(clock.relative(requests), path.name, _stamps(True), block_size=size)
    if extra:
        workload.notes.append(
            f"{extra} requests have more blocks of {size} than their prompt fills; the rest is unused"
        )
    return workload


def _block_parts(hashes: list[Any], size: int, tokens: int) -> Parts:
    full, rest = divmod(tokens, size)
    parts = [(int(key), size) for key in hashes[:full]]
    if rest and len(hashes) > full:
        parts.append((int(hashes[full]), rest))
    return tuple(parts)


def _has_tokens(faults: Faults, line: int, tokens_in: int, tokens_out: int) -> bool:
    if tokens_in >= 1 and tokens_out >= 1:
        return True
    detail = f"{tokens_in} tokens in and {tokens_out} out; both must be at least 1"
    faults.row(line, "negative tokens" if min(tokens_in, tokens_out) < 0 else _ZERO, detail)
    return False


def _cut(tokens: int, options: ReadOptions) -> int:
    return tokens if options.max_output is None else min(tokens, options.max_output)


def _stamps(timed: bool) -> str:
    return "trace timestamps" if timed else ""


class _Clock:
    """Times of a trace: numbers or dates, ascending, from 0 on once they are relative to the first."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path, self._faults = path, faults
        self._last = float("-inf")

    def read(self, line: int, column: str, value: Any, unit: float) -> float | None:
        """Seconds; None: the row is left out."""
        at = self._seconds(line, column, value, unit)
        if at < 0:
            self._faults.row(line, "negative times", f"{column} {value} is negative")
            return None
        if at < self._last:
            self._faults.row(
                line,
                "times out of order",
                f"{column} {value} comes after a later time; the rows must be sorted by time",
            )
            return None
        self._last = at
        return at

    def _seconds(self, line: int, column: str, value: Any, unit: float) -> float:
        if isinstance(value, str) and ("-" in value[1:] and ":" in value):
            try:
                whole, _, fraction = value.strip().replace("T", " ").partition(".")
                digits = "".join(c for c in fraction if c.isdigit())
                moment = datetime.fromisoformat(whole[:19])
                return (moment - datetime(1970, 1, 1)).total_seconds() + (float("0." + digits) if digits else 0.0)
            except ValueError:
                raise WorkloadError(f"{self._path}, line {line}: {column} is {value!r}, not a date") from None
        return number(self._path, line, column, value) * unit

    @staticmethod
    def relative(requests: list[TimedRequest]) -> list[TimedRequest]:
        first = requests[0].arrival if requests else 0.0
        if first == 0.0:
            return requests
        return Workload(requests).with_times([request.arrival - first for request in requests], "").requests


def _on_ticks(workload: Workload, options: ReadOptions) -> Workload:
    at = workload.times()
    distinct = np.unique(at)
    if at.size < 40 or distinct.size < 2 or distinct.size > 0.6 * at.size:
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
