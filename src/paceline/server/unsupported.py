"""Known fields of the API that Paceline does not serve. Silence would be a wrong answer: they are refused."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from paceline.errors import RequestError

log = logging.getLogger(__name__)

_TOOLS = "tool calls are not supported yet"
_STRUCTURED = "structured output is not supported yet"
_MEDIA = "this server reads and writes text only"
_TEMPLATE = "chat templates are set by the server (--chat-template), not by requests"

_HARMLESS: dict[str, tuple[list[Any], str]] = {
    # field: (values that ask for nothing, what to say about others)
    "tools": ([None, []], _TOOLS),
    "tool_choice": ([None, "none", "auto"], _TOOLS),
    "functions": ([None, []], _TOOLS),
    "function_call": ([None, "none", "auto"], _TOOLS),
    "response_format": ([None, {"type": "text"}], _STRUCTURED),
    "structured_outputs": ([None, {}], _STRUCTURED),
    "guided_json": ([None], _STRUCTURED),
    "guided_regex": ([None], _STRUCTURED),
    "guided_choice": ([None], _STRUCTURED),
    "guided_grammar": ([None], _STRUCTURED),
    "modalities": ([None, [], ["text"]], _MEDIA),
    "audio": ([None], _MEDIA),
    "prompt_embeds": ([None], _MEDIA),
    "suffix": ([None, ""], "filling in the middle is not supported"),
    "use_beam_search": ([None, False], "beam search is not supported"),
    "prediction": ([None], "predicted outputs are not supported"),
    "web_search_options": ([None], "web search is not supported"),
    "chat_template": ([None], _TEMPLATE),
    "documents": ([None, []], "documents for the chat template are not supported"),
    "logits_processors": ([None, []], "logits processors are not supported"),
    "allowed_token_ids": ([None], "a whitelist of tokens is not supported; logit_bias may do"),
    "bad_words": ([None, []], "banned words are not supported; logit_bias may do"),
    "truncate_prompt_tokens": ([None], "prompts are not shortened by the server"),
    "echo": ([None, False], "a chat's messages are not repeated in its answer"),
}

# Of the API, and without a meaning here that could change an answer.
_WITHOUT_EFFECT = frozenset(
    {"metadata", "store", "service_tier", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "verbosity"}
)
ALIKE = 0.85  # likeness of two names from which on one is taken for a slip of the other


def refuse_unsupported(extra: dict[str, Any] | None, n: int | None = None) -> None:
    """RequestError for the first field that asks for something Paceline cannot do."""
    for name, value in (extra or {}).items():
        if name == "best_of" and value not in (None, n or 1):
            raise RequestError("best_of must equal n: choosing among candidates is not supported", param=name)
        if name in _HARMLESS and value not in _HARMLESS[name][0]:
            raise RequestError(f"{name}: {_HARMLESS[name][1]}", param=name, code="unsupported_parameter")


def refuse_misspelt(extra: dict[str, Any] | None, known: Iterable[str]) -> None:
    """RequestError for a field that is nearly one of ours: ignoring it would answer another question than asked."""
    names = {*known, *_HARMLESS, *_WITHOUT_EFFECT}
    for name in extra or {}:
        if name not in names and (close := get_close_matches(name, names, 1, ALIKE)):
            raise RequestError(f"{name}: there is no such field; did you mean {close[0]}?", param=name)


class UnknownFields:
    """Says once per field name that it is ignored, so that a typo is found and a log is not flooded."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def note(self, extra: dict[str, Any] | None) -> None:
        for name in extra or {}:
            if name in _HARMLESS or name in _WITHOUT_EFFECT or name in self._seen or len(self._seen) >= 256:
                continue
            self._seen.add(name)
            log.warning("ignoring unknown field %r of a request", name[:80])
