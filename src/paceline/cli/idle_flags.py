"""Flags that would do nothing in the company they are in are refused: whoever types one expects it to change something.

What counts is what was typed. So a script may pass a neutral value (`--replicas 1 --router prefix`), and a default is
in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from paceline.errors import ConfigError

Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Idle:
    """Flags, by the names of their parameters, and when they do nothing: as soon as one of the conditions holds.

    Without any condition: always.
    """

    flags: str
    why: str
    beside: str = ""
    """One of these was typed."""
    without: str = ""
    """None of these was typed."""
    when: tuple[str, Test] | None = None
    """The flag of that name, typed or not, has such a value."""
    unless: str = ""
    """But one of these was typed."""
    neutral: tuple[object, ...] = ()
    """Values that ask for nothing anyway."""


class CheckedCommand(TyperCommand):
    """A command whose flags, of those that are typed, all do something."""

    def invoke(self, ctx: Any) -> Any:
        from paceline.cli.idle_table import IDLE

        refuse_idle(ctx, IDLE.get(ctx.command_path.removeprefix("paceline "), ()))
        return super().invoke(ctx)


def refuse_idle(context: typer.Context, rules: tuple[Idle, ...]) -> None:
    """ConfigError for the first flag that was typed and does nothing."""
    found = _Typed(context)
    for rule in rules:
        for name in rule.flags.split():
            if context.params.get(name) in rule.neutral:
                continue
            if name in found.names and (company := found.company(rule)) is not None:
                value = context.params[name]
                value = str(value) if isinstance(value, Path) else value
                raise ConfigError(found.flag(name), value, " ".join(filter(None, ("left out", company))) + rule.why)


class _Typed:
    """The flags of one call."""

    def __init__(self, context: typer.Context) -> None:
        self._values = context.params
        self._parameters = {one.name: one for one in context.command.params}
        self.names = {name for name in self._values if was_typed(context, name)}

    def flag(self, name: str) -> str:
        """As it is typed; the negative form of one that was switched off."""
        one = self._parameters[name]
        off = self._values.get(name) is False and one.secondary_opts
        spelled = str((one.secondary_opts if off else one.opts)[0])
        return spelled if spelled.startswith("-") else spelled.upper()

    def company(self, rule: Idle) -> str | None:
        """In which company the rule's flags do nothing now; None: they do something."""
        if any(name in self.names for name in rule.unless.split()):
            return None
        if not (rule.beside or rule.without or rule.when):
            return ""
        return next(self._companies(rule), None)

    def _companies(self, rule: Idle) -> Iterator[str]:
        for name in rule.beside.split():
            if name in self.names:
                yield f"beside {self.flag(name)}"
        needed = rule.without.split()
        if needed and not any(name in self.names for name in needed):
            yield "without " + " or ".join(self.flag(name) for name in needed)
        if rule.when is not None and rule.when[1](value := self._values[rule.when[0]]):
            shown = "" if isinstance(value, bool) else f" {value}"
            yield f"with {self.flag(rule.when[0])}{shown}"


def was_typed(context: typer.Context, name: str) -> bool:
    """By the user, so that it is no default and nothing from the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
