"""What is sent: the JSON of one request, made before the request is due."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.target import Target
from paceline.workload.requests import TimedRequest, named_key, stream_tokens

# Words that most vocabularies hold as one token with the space before them.
WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also did many off before must well back through years much where your way down
should because long each just state those people too place little men world own work life might under day while
still good against great right small found water between house another never last high left part both few old
same general come government every number without himself during again once system four set used three end show
play line city table group point money turn hand need head fact word body face door food air road book stone
star tree fire ship king song light green red white black north south east west river field horse bird fish snow
rain wind
""".split()  # noqa: SIM905


@dataclass(frozen=True)
class PromptStyle:
    """How generated prompts are written."""

    vocabulary: int = 30000
    """Ids are drawn from [first, vocabulary): the default holds no special token of the common model families."""
    first: int = 1000
    seed: int = 0


def prepare(target: Target, request: TimedRequest, style: PromptStyle, sampling: dict[str, Any]) -> bytes:
    """The body of a request."""
    if request.text is not None:
        return body_of(target, request.output_len, text=request.text, request=request, sampling=sampling)
    if target.token_ids:
        ids = request.token_ids(style.vocabulary, style.seed, style.first).tolist()
        return body_of(target, request.output_len, ids=ids, request=request, sampling=sampling)
    text = " ".join(_words(request, style.seed))
    return body_of(target, request.output_len, text=text, request=request, sampling=sampling)


def body_of(
    target: Target,
    tokens: int,
    *,
    ids: Sequence[int] | None = None,
    text: str | None = None,
    request: TimedRequest | None = None,
    sampling: dict[str, Any] | None = None,
) -> bytes:
    """JSON of a streaming request for `tokens` tokens."""
    body: dict[str, Any] = {"model": target.model, "stream": True, "stream_options": {"include_usage": True}}
    if target.endpoint == "chat":
        body |= {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    else:
        body |= {"prompt": ids if ids is not None else text, "max_tokens": tokens}
    if target.continuous_usage:
        body["stream_options"]["continuous_usage_stats"] = True
    if target.ignore_eos:
        body["ignore_eos"] = True
    if request is not None:
        if request.tenant:
            body["user"] = request.tenant
        if request.priority:
            body["priority"] = request.priority
    return json.dumps({**body, "temperature": 0.0, **(sampling or {}), **target.extra_body}).encode()


def _words(request: TimedRequest, seed: int) -> list[str]:
    parts = request.parts or ((named_key(request.id), request.prompt_len),)
    return [WORDS[i] for key, length in parts for i in stream_tokens(key, length, len(WORDS), seed).tolist()]
