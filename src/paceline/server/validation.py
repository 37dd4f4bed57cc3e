"""What is wrong with a body or a query, in the words of the API rather than those of the library that found it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from paceline.errors import RequestError

_KINDS = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number that is finite",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BOUNDS = {
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
}
LONGEST_VALUE = 60  # characters of a value that are repeated to whoever sent it


def first_fault(errors: Sequence[Any]) -> RequestError:
    """From pydantic's list of errors (dictionaries with type, loc, msg, input, ctx) to the first fault, with its
    field, what it must be and what was sent."""
    path = _path(errors[0])
    same = [error for error in errors if _path(error) == path]  # a field of several types: one error for each
    field, param = ".".join(path), path[0] if path else None
    first = same[0]
    if first["type"] == "missing":
        return RequestError(f"{field} is required", param=param)
    if first["type"] == "value_error":
        return RequestError(f"{field}: {first['ctx']['error']}", param=param)
    wanted = list(dict.fromkeys(filter(None, map(_wanted, same))))
    if not wanted:
        return RequestError(f"{field}: {first['msg']}" if field else first["msg"], param=param)
    return RequestError(f"{field} must be {' or '.join(wanted)}, got {shown(first['input'])}", param=param)


def shown(value: Any) -> str:
    """A value as JSON, not too long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def _path(error: Any) -> list[str]:
    """The names and indexes of a field, without the types pydantic adds for one that may have several."""
    parts = [str(part) for part in error["loc"] if part not in ("body", "query", "path")]
    return [part for part in parts if "[" not in part and part not in ("str", "int", "float", "bool")]


def _wanted(error: Any) -> str | None:
    kind, context = error["type"], error.get("ctx") or {}
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    tag = str(error["loc"][-1])
    if kind == "list_type" and "[" in tag:
        inner = {"str": "strings", "int": "integers"}.get(tag.removeprefix("list[").rstrip("]"))
        return f"a list of {inner}" if inner else "a list"
    return _KINDS.get(kind)
