"""Flags that several commands share: fields of dataclasses become the options of a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_type_hints

import typer

from paceline.cli.numbers import engine_words, with_parser

Flags = TypeVar("Flags")


def flag(text: str, *names: str, **more: Any) -> Any:
    """A flag, for `Annotated`."""
    return typer.Option(*names, help=text, **more)


def command(*kinds: type[Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The decorated function takes one object per kind; the command takes their fields as flags, in that order."""

    def wrap(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def run(**given: Any) -> int:
            return function(*(kind(**{spec.name: given[spec.name] for spec in fields(kind)}) for kind in kinds))

        parameters, hints = [], {}
        for kind in kinds:
            found = get_type_hints(kind, include_extras=True)
            for spec in fields(kind):
                hints[spec.name] = with_parser(spec.name, found[spec.name], engine_words)
                parameters.append(
                    inspect.Parameter(
                        spec.name, inspect.Parameter.KEYWORD_ONLY, default=_default(spec), annotation=hints[spec.name]
                    )
                )
        del run.__wrapped__
        run.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
        run.__annotations__ = {**hints, "return": int}
        return run

    return wrap


def _default(spec: Field[Any]) -> Any:
    return inspect.Parameter.empty if spec.default is MISSING else spec.default
