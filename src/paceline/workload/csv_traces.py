"""Traces as tables: a column of times, if there is one, and columns of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.workload.packed import Packer
from paceline.workload.requests import TimedRequest, Workload, WorkloadError
from paceline.workload.trace_faults import BadRow, Faults
from paceline.workload.trace_files import csv_rows
from paceline.workload.trace_rows import MOST_TOKENS, Clock, count, cut, need_tokens, stamps

if TYPE_CHECKING:
    from paceline.workload.traces import ReadOptions

COLUMNS = {
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


def read(path: Path, text: str, kind: str, options: ReadOptions, faults: Faults) -> Workload:
    header, rows = csv_rows(path, text, faults)
    found = {role: next((name for name in names if name in header), None) for role, names in COLUMNS.items()}
    for role in ("input", "output"):
        if found[role] is None:
            raise WorkloadError(
                f"{path}, line 1: there is no column of {role} tokens; the columns are {', '.join(header)}, "
                f"and one of {', '.join(COLUMNS[role])} is needed"
            )
    timed = found["time"] is not None
    requests = Packer()
    clock = Clock()
    for line, row in rows:
        if options.limit is not None and len(requests) >= options.limit:
            break
        given = {role: row[name] for role, name in found.items() if name is not None}
        try:
            tokens_in = count(str(found["input"]), given["input"], MOST_TOKENS)
            tokens_out = count(str(found["output"]), given["output"], MOST_TOKENS)
            if kind == "burstgpt" and min(tokens_in, tokens_out) == 0:
                faults.counts["0 tokens: requests that failed when the trace was taken"] += 1
                continue
            need_tokens(tokens_in, tokens_out)
            priority = count("priority", given.get("priority") or 0)
            at = clock.read(str(found["time"]), given["time"], 1.0) if timed else 0.0
        except BadRow as fault:
            faults.take(line, fault)
            continue
        requests.append(
            TimedRequest(
                str(len(requests)),
                at,
                tokens_in,
                cut(tokens_out, options),
                parts=((-1 - len(requests), tokens_in),),
                tenant=given.get("tenant", ""),
                session=given.get("session", ""),
                priority=priority,
            )
        )
    return Workload(clock.relative(requests.requests()), path.name, stamps(timed), timed)
