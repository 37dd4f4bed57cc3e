"""Log-probabilities in the shapes of the two APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.engine.outputs import PositionLogprobs, TokenLogprob

LOWEST = -9999.0  # what OpenAI shows for a token without a chance; JSON has no infinity


def _value(token: TokenLogprob) -> float:
    return max(token.logprob, LOWEST)


def _name(token: TokenLogprob, as_ids: bool) -> str:
    return f"token_id:{token.token_id}" if as_ids else token.text


def chat_logprobs(positions: Sequence[PositionLogprobs], as_ids: bool = False) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""

    def entry(token: TokenLogprob) -> dict[str, Any]:
        name = _name(token, as_ids)
        return {"token": name, "logprob": _value(token), "bytes": list(name.encode() if as_ids else token.bytes)}

    return {
        "content": [
            {**entry(position.chosen), "top_logprobs": [entry(token) for token in position.top]}
            for position in positions
        ],
        "refusal": None,
    }


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None],
    first_offset: int = 0,
    as_ids: bool = False,
    first_text: str = "",
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion: lists along the tokens.

    None stands for the first token of an echoed prompt, which has no log-probability; `first_text` is its text.
    `first_offset` is where the first token starts in the text, in characters.
    """
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    offset = first_offset
    for position in positions:
        offsets.append(offset)
        if position is None:
            tokens.append(first_text)
            values.append(None)
            tops.append(None)
            offset += len(first_text)
            continue
        tokens.append(_name(position.chosen, as_ids))
        values.append(_value(position.chosen))
        top = {_name(token, as_ids): _value(token) for token in position.top}
        top.setdefault(_name(position.chosen, as_ids), _value(position.chosen))
        tops.append(top)
        offset += len(position.chosen.text)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def prompt_logprobs(positions: Sequence[PositionLogprobs | None] | None) -> list[dict[str, Any] | None] | None:
    """`prompt_logprobs` as vLLM gives it: per prompt token, token id -> {logprob, rank, decoded_token}."""
    if positions is None:
        return None
    return [None if position is None else _by_id(position) for position in positions]


def _by_id(position: PositionLogprobs) -> dict[str, Any]:
    return {
        str(token.token_id): {"logprob": _value(token), "rank": token.rank, "decoded_token": token.text}
        for token in (*position.top, position.chosen)
    }
