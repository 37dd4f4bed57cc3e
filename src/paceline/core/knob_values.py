"""What the knobs of disciplines and orders may be: checked when one is set, and told when one is asked about."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.core.admissions.whole_life import RESERVES
from paceline.core.compositions.contexts_first import POLICIES
from paceline.core.predictors import PREDICTORS
from paceline.core.preemption import PREEMPTIONS
from paceline.core.step import ANY, FIRST, ONE
from paceline.errors import ConfigError

_SHARE = (0, 1)
# Least and most of a number, by the knob's name; at least 0 where there is none. Objects check the rest themselves.
SPANS: dict[str, tuple[float, float]] = {
    "below": _SHARE,
    "clip": (1, math.inf),
    "decay_steps": (1, math.inf),
    "host_reserve": _SHARE,
    "init_ratio": _SHARE,
    "max_concurrent_requests": (1, math.inf),
    "min_ratio": _SHARE,
    "quantum": (1, math.inf),
    "ratio": (1, 1000),
    "router_max_new_token_len": (1, math.inf),
    "router_token_ratio": _SHARE,
    "safety_margin": _SHARE,
    "slot_prompt_similarity": _SHARE,
    "span": (1, math.inf),
    "turns": (1, math.inf),
    "window": (1, math.inf),
}
MOST_LEVELS = 64
CHOICES: dict[str, tuple[str, ...]] = {
    "chunking": POLICIES,
    "cut": (ANY, FIRST, ONE),
    "how": (*PREEMPTIONS, "threshold:TOKENS"),
    "predictor": tuple(PREDICTORS),
    "reserve": RESERVES,
    "timeout_action": ("reject", "delay"),
}  # for the words alone
_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,), "str": (str,)}


def allowed(name: str, default: Any, kind: str) -> str:
    """In words. `kind`: the type as it is annotated."""
    numbers = _number_kind(default, kind)
    if name in CHOICES:
        text = "one of " + ", ".join(CHOICES[name])
    elif numbers is not None:
        least, most = _span(name, default)
        text = {"int": "a whole number", "float": "a number"}[numbers]
        text += f" of at least {least:g}" if most == math.inf else f" from {least:g} to {most:g}"
    elif isinstance(default, bool):
        text = "true or false"
    elif isinstance(default, Mapping):
        text = "an object"
    else:
        text = "a list of whole numbers" if isinstance(default, tuple) else f"a value like its default {default!r}"
    return text + (", or null" if "None" in _names(kind) else "")


def checked(where: str, name: str, value: Any, default: Any, kind: str) -> Any:
    """The value, as the knob has it: a whole number may stand for a real one, a list for a tuple.

    ConfigError, naming the setting `where`, for a value of another type or out of range.
    """
    if value is None and "None" in _names(kind):
        return value
    numbers = _number_kind(default, kind)
    if numbers is not None:
        least, most = _span(name, default)
        if type(value) not in _KINDS[numbers] or not least <= value <= most or value == math.inf:
            raise ConfigError(where, value, allowed(name, default, kind))
        return float(value) if numbers == "float" else value
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if default is not None and type(value) is not type(default) and not _both_mappings(value, default):
        raise ConfigError(where, value, allowed(name, default, kind))
    return value


def parse_knobs(texts: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE each; a value is JSON (16, 0.5, true, [128, 512]), or else a word. ConfigError for anything else."""
    knobs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise ConfigError("--knob", text, "NAME=VALUE, such as growth=16; 'paceline disciplines NAME' lists them")
        if name in knobs:
            raise ConfigError("--knob", text, f"given once: {name} is set before")
        knobs[name] = _typed(value.strip())
    return knobs


def _typed(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)
    return tuple(value) if isinstance(value, list) else value


def _names(kind: str) -> list[str]:
    return [name.strip() for name in kind.split("|")]


def _number_kind(default: Any, kind: str) -> str | None:
    """int or float, where the knob is a number."""
    found = [name for name in _names(kind) if name in ("int", "float")]
    if found:
        return found[0]
    return None if isinstance(default, bool) or not isinstance(default, (int, float)) else type(default).__name__


def _span(name: str, default: Any) -> tuple[float, float]:
    return (1, MOST_LEVELS) if name == "levels" else SPANS.get(name, (0, math.inf))


def _both_mappings(value: Any, default: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(default, Mapping)
