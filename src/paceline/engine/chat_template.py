"""Chat templates: Jinja, sandboxed, with the helpers model authors count on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.errors import ModelError, RequestError


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=lineno)


class ChatTemplate:
    """A compiled template. `names` are the special tokens it may refer to (bos_token, eos_token, ...)."""

    def __init__(self, source: str, names: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.names = dict(names or {})

    def check(self) -> None:
        """ModelError when it is no Jinja."""
        self._template  # noqa: B018

    @cached_property
    def _template(self) -> jinja2.Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
        try:
            return environment.from_string(self.source)
        except jinja2.TemplateError as error:
            raise ModelError(
                f"the chat template is not valid Jinja ({error}); give another with --chat-template"
            ) from error

    def render(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text of `messages`. Raises RequestError when the template refuses them."""
        try:
            return self._template.render(
                {
                    "tools": None,
                    "documents": None,
                    **self.names,
                    **variables,
                    "messages": messages,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError, IndexError, ValueError) as error:
            raise RequestError(f"the model's chat template refused the messages: {error}", param="messages") from error

    @staticmethod
    def missing() -> RequestError:
        """What to say when a model has no template."""
        return RequestError(
            "this model has no chat template; use /v1/completions, or start the server with --chat-template",
            param="messages",
        )


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    # Jinja's own filter escapes HTML characters, which would end up in the prompt.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)
