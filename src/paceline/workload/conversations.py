"""Prompts as text: ShareGPT-style conversations, and JSON lines of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.workload.requests import TimedRequest, Workload
from paceline.workload.trace_faults import BadRow, Faults
from paceline.workload.trace_files import json_lines, no_object, whole_json
from paceline.workload.trace_rows import MOST_TOKENS
from paceline.workload.trace_rows import count as whole_number

if TYPE_CHECKING:
    from paceline.workload.traces import ReadOptions

_PEOPLE = ("human", "user", "prompter")
_MODELS = ("gpt", "chatgpt", "assistant", "bing", "bard", "model")
_LENGTHS = ("output_tokens", "output_length", "max_tokens")
_SHORTEST = 4
_DEFAULT_OUTPUT = 128


def read(path: Path, text: str, options: ReadOptions, faults: Faults) -> Workload:
    """The first question of each conversation, with as many tokens to answer as the recorded answer has.

    Questions and answers below 4 tokens are left out and counted, as vLLM's benchmark leaves them out.
    """
    count = options.count_tokens or (lambda one: max(1, len(one) // 4))
    requests: list[TimedRequest] = []
    where = "entry" if text.lstrip().startswith("[") else "line"
    for line, row in _rows(path, text, faults):
        if options.limit is not None and len(requests) >= options.limit:
            break
        try:
            pair = _pair(row)
        except BadRow as fault:
            faults.take(line, fault, where)
            continue
        if pair is None:
            faults.counts["conversations without a question and an answer"] += 1
            continue
        prompt, answer = pair
        tokens_in = count(prompt)
        tokens_out = answer if isinstance(answer, int) else count(answer)
        if tokens_in < _SHORTEST or (isinstance(answer, str) and tokens_out < _SHORTEST):
            faults.counts[f"questions or answers below {_SHORTEST} tokens"] += 1
            continue
        cut = tokens_out if options.max_output is None else min(tokens_out, options.max_output)
        name = str(len(requests))
        tenant = str(row.get("tenant", ""))
        requests.append(TimedRequest(name, 0.0, tokens_in, cut, text=prompt, tenant=tenant))
    workload = Workload(requests, path.name, "", timed=False)
    if options.count_tokens is None:
        workload.notes.append("lengths are estimates: a quarter of the characters, for want of a tokenizer")
    return workload


def _rows(path: Path, text: str, faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    if not text.lstrip().startswith("["):
        yield from json_lines(text, faults)
        return
    value = whole_json(path, text)
    for number, row in enumerate(value, 1):
        if isinstance(row, dict):
            yield number, row
        else:
            faults.take(number, no_object(row), "entry")


def _pair(row: dict[str, Any]) -> tuple[str, str | int] | None:
    """(question, answer or its number of tokens). BadRow."""
    prompt = row.get("prompt", row.get("text"))
    if isinstance(prompt, str):
        named = next((name for name in _LENGTHS if row.get(name) is not None), None)
        answer = row.get("completion", row.get("answer", row.get("response")))
        if named is not None:
            length = whole_number(named, row[named], MOST_TOKENS)
            if length < 1:
                raise BadRow("rows with 0 tokens", f"{named} is {length}; there must be at least 1 token to answer")
            return prompt, length
        return prompt, answer if isinstance(answer, str) else _DEFAULT_OUTPUT
    turns = row.get("conversations", row.get("conversation", row.get("messages")))
    if turns is None:
        found = ", ".join(row)
        raise BadRow("rows without a prompt", f"no prompt and no conversations; it has {found[:300]}")
    said = [_turn(turn) for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    for (who, question), (other, answer) in pairwise(said):
        if who in _PEOPLE and other in _MODELS and question and answer:
            return question, answer
    return None


def _turn(turn: dict[str, Any]) -> tuple[str, str]:
    who = str(turn.get("from", turn.get("role", ""))).lower()
    said = turn.get("value", turn.get("content", ""))
    return who, said if isinstance(said, str) else ""
