"""Prompts as text: ShareGPT-style conversations, and JSON lines of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.workload.requests import TimedRequest, Workload, WorkloadError
from paceline.workload.trace_files import Faults, json_lines, whole_json

if TYPE_CHECKING:
    from paceline.workload.traces import ReadOptions

_PEOPLE = ("human", "user", "prompter")
_MODELS = ("gpt", "chatgpt", "assistant", "bing", "bard", "model")
_SHORTEST = 4
_DEFAULT_OUTPUT = 128


def read(path: Path, text: str, options: ReadOptions, faults: Faults) -> Workload:
    """The first question of each conversation, with as many tokens to answer as the recorded answer has.

    Questions and answers below 4 tokens are left out and counted, as vLLM's benchmark leaves them out.
    """
    count = options.count_tokens or (lambda one: max(1, len(one) // 4))
    requests: list[TimedRequest] = []
    for line, row in _rows(path, text):
        if options.limit is not None and len(requests) >= options.limit:
            break
        pair = _pair(path, line, row)
        if pair is None:
            faults.counts["conversations without a question and an answer"] += 1
            continue
        prompt, answer = pair
        tokens_in = count(prompt)
        tokens_out = answer if isinstance(answer, int) else count(answer)
        if tokens_in < _SHORTEST or (isinstance(answer, str) and tokens_out < _SHORTEST):
            faults.counts[f"questions or answers below {_SHORTEST} tokens"] += 1
            continue
        if tokens_out < 1:
            faults.row(line, "rows with 0 tokens", f"{tokens_out} tokens to answer; there must be at least 1")
            continue
        cut = tokens_out if options.max_output is None else min(tokens_out, options.max_output)
        name = str(len(requests))
        tenant = str(row.get("tenant", ""))
        requests.append(TimedRequest(name, 0.0, tokens_in, cut, text=prompt, tenant=tenant))
    workload = Workload(requests, path.name, "", timed=False)
    if options.count_tokens is None:
        workload.notes.append("lengths are estimates: a quarter of the characters, for want of a tokenizer")
    return workload


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if not text.lstrip().startswith("["):
        yield from json_lines(path, text)
        return
    value = whole_json(path, text)
    for number, row in enumerate(value, 1):
        if not isinstance(row, dict):
            raise WorkloadError(f"{path}, entry {number}: a JSON object is needed, this is a {type(row).__name__}")
        yield number, row


def _pair(path: Path, line: int, row: dict[str, Any]) -> tuple[str, str | int] | None:
    """(question, answer or its number of tokens)."""
    prompt = row.get("prompt", row.get("text"))
    if isinstance(prompt, str):
        length = row.get("output_tokens", row.get("output_length", row.get("max_tokens")))
        answer = row.get("completion", row.get("answer", row.get("response")))
        if isinstance(length, int) and not isinstance(length, bool):
            return prompt, length
        return prompt, answer if isinstance(answer, str) else _DEFAULT_OUTPUT
    turns = row.get("conversations", row.get("conversation", row.get("messages")))
    if turns is None:
        raise WorkloadError(f"{path}, entry {line}: no prompt and no conversations; it has {', '.join(row)}")
    said = [_turn(turn) for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    for (who, question), (other, answer) in pairwise(said):
        if who in _PEOPLE and other in _MODELS and question and answer:
            return question, answer
    return None


def _turn(turn: dict[str, Any]) -> tuple[str, str]:
    who = str(turn.get("from", turn.get("role", ""))).lower()
    said = turn.get("value", turn.get("content", ""))
    return who, said if isinstance(said, str) else ""
