"""Traces as JSON lines whose prompts are named block by block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.workload.requests import Parts, TimedRequest, Workload
from paceline.workload.trace_faults import BadRow, Faults
from paceline.workload.trace_files import Row, json_lines
from paceline.workload.trace_rows import MOST_TOKENS, Clock, count, cut, need_tokens, stamps

if TYPE_CHECKING:
    from paceline.workload.traces import ReadOptions


def read(path: Path, text: str, kind: str, options: ReadOptions, faults: Faults) -> Workload:
    size = options.block_size or (16 if kind == "bailian" else 512)
    unit = 1.0 if kind == "bailian" else 1e-3
    requests: list[TimedRequest] = []
    clock = Clock()
    extra = 0
    for line, row in json_lines(text, faults):
        if options.limit is not None and len(requests) >= options.limit:
            break
        try:
            request, blocks = _request(row, len(requests), size, options)
            at = clock.read("timestamp", row["timestamp"], unit)
        except BadRow as fault:
            faults.take(line, fault)
            continue
        extra += blocks > len(request.parts)
        requests.append(replace(request, arrival=at))
    workload = Workload(clock.relative(requests), path.name, stamps(True), block_size=size)
    if extra:
        workload.notes.append(
            f"{extra} requests have more blocks of {size} than their prompt fills; the rest is unused"
        )
    return workload


def _request(row: Row, number: int, size: int, options: ReadOptions) -> tuple[TimedRequest, int]:
    """The request of a row, without its time, and how many blocks it names. BadRow."""
    missing = [key for key in ("timestamp", "input_length", "output_length") if key not in row]
    if missing:
        found = ", ".join(row)
        raise BadRow(f"rows without {missing[0]}", f"there is no {missing[0]}; it has {found[:300]}")
    tokens_in = count("input_length", row["input_length"], MOST_TOKENS)
    tokens_out = count("output_length", row["output_length"], MOST_TOKENS)
    need_tokens(tokens_in, tokens_out)
    hashes = _hashes(row.get("hash_ids"))
    if hashes and len(hashes) * size < tokens_in:
        larger = -(-tokens_in // len(hashes))
        detail = f"{len(hashes)} blocks of {size} tokens cover {len(hashes) * size} of {tokens_in}; "
        detail += f"the trace has blocks of at least {larger} (--block-size)"
        raise BadRow("blocks do not cover the prompt", detail)
    request = TimedRequest(
        str(number),
        0.0,
        tokens_in,
        cut(tokens_out, options),
        parts=_block_parts(hashes, size, tokens_in) or ((-1 - number, tokens_in),),
        tenant=str(row.get("tenant", row.get("type", ""))),
        session=str(row.get("session", row.get("chat_id", ""))),
        turn=count("turn", row.get("turn") or 0),
        priority=count("priority", row.get("priority") or 0),
    )
    return request, len(hashes)


def _hashes(value: Any) -> list[int]:
    """BadRow for what is no list of whole numbers."""
    if value is None:
        return []
    if not isinstance(value, list) or any(type(one) is not int for one in value):
        raise BadRow("hash_ids that are no lists", f"hash_ids is {str(value)[:60]!r}, not a list of whole numbers")
    return value


def _block_parts(hashes: list[int], size: int, tokens: int) -> Parts:
    full, rest = divmod(tokens, size)
    parts = [(key, size) for key in hashes[:full]]
    if rest and len(hashes) > full:
        parts.append((hashes[full], rest))
    return tuple(parts)
