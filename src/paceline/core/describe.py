"""The table of disciplines in words: what each row chooses, with which numbers, and what is known to go wrong."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from paceline.core.config import SchedulerConfig
from paceline.core.discipline import Discipline
from paceline.core.disciplines import ALIASES, DISCIPLINES
from paceline.core.knob_values import allowed
from paceline.core.orders import ORDERS

POINTS = ("order", "admission", "head_of_line", "composition", "eviction", "overload")
QUESTIONS = {
    "order": "who is next?",
    "admission": "may it start?",
    "head_of_line": "if the first does not fit?",
    "composition": "what shares a step?",
    "eviction": "KV is exhausted: who yields?",
    "overload": "the door is full or late?",
}
BESIDE = {"eviction": "displacement", "overload": "limits"}  # what goes with a choice, and is in every row
LEFT_OUT = ("num_blocks", "max_model_len", "eos_token_ids", "kv_identity")  # settings no row has an opinion on


def table() -> list[dict[str, str]]:
    """One line a row: its name, what it is after, and the name of each of its six choices."""
    return [
        {"name": row.name, "after": row.after, **{point: _title(row, point) for point in POINTS}}
        for row in DISCIPLINES.values()
    ]


def orders() -> list[dict[str, Any]]:
    """One line an order: its name, what it does, how long one may wait under it, and its knobs."""
    return [
        {"name": name, "words": first_sentence(policy), "bound": policy.bound, "knobs": _knobs(policy)}
        for name, policy in ORDERS.items()
    ]


def explain_order(name: str) -> dict[str, Any]:
    """Everything the table says of an order, as plain values: its knobs with what they may be."""
    policy = ORDERS[name]
    return {
        "name": name,
        "words": " ".join((inspect.getdoc(type(policy)) or "").split()),
        "bound": policy.bound,
        "knobs": _knobs(policy),
        "allowed": _allowed(policy),
        "of": [row.name for row in DISCIPLINES.values() if row.order == name],
    }


def explain(row: Discipline) -> dict[str, Any]:
    """Everything the table says of a row, as plain values."""
    return {
        "name": row.name,
        "aliases": [alias for alias, name in ALIASES.items() if name == row.name],
        "after": row.after,
        "choices": {point: _choice(row, point) for point in POINTS},
        "cache": {
            "radix": "hits exact to the token, in a radix tree",
            "chain": "whole blocks, in a table of chained hashes",
        }[row.cache],
        "settings": _settings(row),
        "fixed": {name: {"value": value, "why": why} for name, (value, why) in row.fixed.items()},
        "empty_steps": row.empty_steps,
        "failure_modes": list(row.failure_modes),
    }


def first_sentence(part: object) -> str:
    """What a decision object does, as its class says it."""
    text = inspect.getdoc(type(part)) or _spaced(type(part).__name__)
    return re.split(r"(?<=[.!])\s", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]


def _part(row: Discipline, point: str) -> Any:
    return row.policy if point == "order" else getattr(row, point)


def _choice(row: Discipline, point: str) -> dict[str, Any]:
    part = _part(row, point)
    choice: dict[str, Any] = {
        "question": QUESTIONS[point],
        "name": _title(row, point),
        "words": " ".join((inspect.getdoc(type(part)) or "").split()),
        "knobs": _knobs(part),
        "allowed": _allowed(part),
    }
    if (beside := getattr(row, BESIDE.get(point, ""), None)) is not None:
        choice["words"] += " " + " ".join((inspect.getdoc(type(beside)) or "").split())
        choice["knobs"].update(_knobs(beside))
        choice["allowed"].update(_allowed(beside))
    if point == "order":
        choice["bound"] = row.policy.bound
    return choice


def _title(row: Discipline, point: str) -> str:
    return row.order if point == "order" else _spaced(type(getattr(row, point)).__name__)


def _spaced(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def _knobs(part: Any) -> dict[str, Any]:
    return {spec.name: _plain(getattr(part, spec.name)) for spec in fields(part)} if is_dataclass(part) else {}


def _allowed(part: Any) -> dict[str, str]:
    """What each knob may be, in words."""
    found = fields(part) if is_dataclass(part) else ()
    return {spec.name: allowed(spec.name, getattr(part, spec.name), str(spec.type)) for spec in found}


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(one) for name, one in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple, set, frozenset)) else value


def _settings(row: Discipline) -> dict[str, Any]:
    """Settings of the scheduler as the row has them."""
    config = row.configure(num_blocks=1, max_model_len=1)
    return {
        spec.name: _plain(getattr(config, spec.name)) for spec in fields(SchedulerConfig) if spec.name not in LEFT_OUT
    }
