"""Numbers as people type them: every refusal names the flag, the value and what it may be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from paceline.cli.choices import OneOf
from paceline.errors import ConfigError, flag_of

Function = TypeVar("Function", bound=Callable[..., Any])
Words = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Span:
    """What a number may be; in `Annotated`, beside its flag. Numbers are finite."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def words(self, whole: bool) -> str:
        """Such as "a whole number from 1 to 64"."""
        kind = "a whole number" if whole else "a number"
        if self.least is not None and self.most is not None:
            return f"{kind} from {_plain(self.least)} to {_plain(self.most)}"
        low = None if self.least is None else f"of at least {_plain(self.least)}"
        low = low if self.above is None else f"above {_plain(self.above)}"
        high = None if self.most is None else f"at most {_plain(self.most)}"
        high = high if self.below is None else f"below {_plain(self.below)}"
        return f"{kind} " + " and ".join(part for part in (low, high) if part) if low or high else kind


def number(name: str, text: str | int | float, whole: bool, span: Span, words: str | None = None) -> int | float:
    """The number that was typed for the flag `name`. ConfigError for what is none, or not in `span`.

    `words`: what is allowed, where somebody else than `span` knows.
    """
    value: int | float
    try:
        value = int(text) if whole else float(text)
    except (ValueError, OverflowError):
        raise ConfigError(name, text, words or span.words(whole)) from None
    if not span.holds(value):
        raise ConfigError(name, value, words or span.words(whole))
    return value


def with_parser(name: str, hint: Any, words: Words = lambda name: None) -> Any:
    """The hint of a parameter, so that its flag reads numbers with `number` and names with `OneOf`; others as they are.

    `words(name)`: what is allowed, for a number without a Span.
    """
    if get_origin(hint) is not Annotated:
        return hint
    kind, *more = get_args(hint)
    kinds = set(get_args(kind)) - {type(None)} if get_origin(kind) in (Union, UnionType) else {kind}
    info = next((one for one in more if isinstance(one, (OptionInfo, ArgumentInfo))), None)
    choice = next((one for one in more if isinstance(one, OneOf)), None)
    if info is not None and choice is not None:
        info.parser, info.metavar = choice.parser(_flag(name, info)), info.metavar or "NAME"
        return Annotated[(kind, *(one for one in more if one is not choice))]
    if info is None or info.parser is not None or kinds not in ({int}, {float}):
        return hint
    whole, given = kinds == {int}, next((one for one in more if isinstance(one, Span)), None)
    flag = _flag(name, info)

    def parse(text: str | int | float) -> int | float:
        span = Span() if given is None else given
        return number(flag, text, whole, span, words(name) if given is None and _is_wrong(text, whole) else None)

    info.parser, info.metavar = parse, info.metavar or ("INTEGER" if whole else "FLOAT")
    return Annotated[(kind, *(one for one in more if not isinstance(one, Span)))]


def numbered(function: Function, words: Words = lambda name: None) -> Function:
    """The same command, whose flags read numbers with `number`."""
    hints = get_type_hints(function, include_extras=True)
    function.__annotations__ = {name: with_parser(name, hint, words) for name, hint in hints.items()}
    return function


def engine_words(name: str) -> str | None:
    """What a setting of the engine or of the server may be, as it says itself when it refuses one; None: it does not.

    The settings check themselves; what is no number at all never gets to them.
    """
    from paceline.engine.config import EngineConfig
    from paceline.server.config import ServerConfig

    for kind in (EngineConfig, ServerConfig):
        if name in inspect.signature(kind).parameters:
            try:
                kind(**{name: -(10**30)})
            except ConfigError as error:
                return error.allowed
    return None


def _is_wrong(text: str | int | float, whole: bool) -> bool:
    try:
        return not math.isfinite(int(text) if whole else float(text))
    except (ValueError, OverflowError):
        return True


def _flag(name: str, info: OptionInfo | ArgumentInfo) -> str:
    names = (info.default, *(info.param_decls or ()))  # Typer takes the first for a default until it reads the hint
    declared = [one for one in names if isinstance(one, str) and one.startswith("--")]
    return declared[0].split("/")[0] if declared else flag_of(name)


def _plain(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
