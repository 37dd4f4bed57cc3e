"""Traces as JSON lines whose prompts are named block by block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.workload.requests import Parts, TimedRequest, Workload, WorkloadError
from paceline.workload.trace_files import Faults, count, json_lines
from paceline.workload.trace_rows import Clock, cut, has_tokens, stamps

if TYPE_CHECKING:
    from paceline.workload.traces import ReadOptions


def read(path: Path, text: str, kind: str, options: ReadOptions, faults: Faults) -> Workload:
    size = options.block_size or (16 if kind == "bailian" else 512)
    unit = 1.0 if kind == "bailian" else 1e-3
    requests: list[TimedRequest] = []
    clock = Clock(path, faults)
    extra = 0
    for line, row in json_lines(path, text):
        if options.limit is not None and len(requests) >= options.limit:
            break
        missing = [key for key in ("timestamp", "input_length", "output_length") if key not in row]
        if missing:
            raise WorkloadError(f"{path}, line {line}: there is no {missing[0]}; it has {', '.join(row)}")
        tokens_in = count(path, line, "input_length", row["input_length"])
        tokens_out = count(path, line, "output_length", row["output_length"])
        if not has_tokens(faults, line, tokens_in, tokens_out):
            continue
        hashes = _hashes(path, line, row.get("hash_ids"))
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
                cut(tokens_out, options),
                parts=parts,
                tenant=str(row.get("tenant", row.get("type", ""))),
                session=str(row.get("session", row.get("chat_id", ""))),
                turn=count(path, line, "turn", row.get("turn") or 0),
                priority=count(path, line, "priority", row.get("priority") or 0),
            )
        )
    workload = Workload(clock.relative(requests), path.name, stamps(True), block_size=size)
    if extra:
        workload.notes.append(
            f"{extra} requests have more blocks of {size} than their prompt fills; the rest is unused"
        )
    return workload


def _hashes(path: Path, line: int, value: Any) -> list[int]:
    """WorkloadError for what is no list of whole numbers."""
    if value is None:
        return []
    if not isinstance(value, list) or any(type(one) is not int for one in value):
        raise WorkloadError(f"{path}, line {line}: hash_ids is {str(value)[:60]!r}, not a list of whole numbers")
    return value


def _block_parts(hashes: list[int], size: int, tokens: int) -> Parts:
    full, rest = divmod(tokens, size)
    parts = [(key, size) for key in hashes[:full]]
    if rest and len(hashes) > full:
        parts.append((hashes[full], rest))
    return tuple(parts)
