"""Whether a request can ever run, by its name, its size and what it may grow to: asked at the door, once."""

from __future__ import annotations

from collections.abc import Container

from paceline.core.admissions import Admission
from paceline.core.config import SchedulerConfig
from paceline.core.request import Request, sequence_id
from paceline.errors import RequestError


def max_length(config: SchedulerConfig, request: Request) -> int:
    """Most tokens a sequence of the request may have: its own limit, the context, and what the KV can hold.

    The last token needs no K/V.
    """
    limit = config.max_model_len
    if request.params.max_tokens is not None:
        return min(limit, int(request.prompt.size) + request.params.max_tokens)
    return min(limit, config.num_blocks * config.block_size + 1)


def check_ids(request: Request, indexes: list[int], requests: Container[str], sequences: Container[str]) -> None:
    """RequestError where the request, or one of its sequences, would be named like one that is here."""
    for name in (request.id, *(sequence_id(request.id, index) for index in indexes)):
        if name in requests or name in sequences:
            raise RequestError(f"request id {request.id!r}: {name!r} is already in use", param="request_id")


def check_fits(config: SchedulerConfig, admission: Admission, request: Request) -> None:
    """RequestError, with the numbers, for a request that can never run."""
    prompt = int(request.prompt.size)
    if prompt == 0:
        raise RequestError("the prompt is empty; it must have at least one token", param="prompt")
    if prompt >= config.max_model_len:
        raise RequestError(
            f"the prompt has {prompt} tokens, but the context holds {config.max_model_len}, one of them generated",
            param="prompt",
            code="context_length_exceeded",
        )
    most = max_length(config, request)
    needs = admission.most_blocks(config, prompt, most)
    if needs > config.num_blocks:
        raise RequestError(
            f"{prompt} prompt tokens and {most - prompt} to generate need {needs} KV blocks of "
            f"{config.block_size} tokens, but there are {config.num_blocks} in all; shorten the prompt, lower "
            "max_tokens, or serve with a larger KV cache",
            param="max_tokens",
            code="kv_capacity_exceeded",
        )
    for index, generated in (request.resumed or {}).items():
        if prompt + int(generated.size) >= most:
            raise RequestError(
                f"sequence {index} to resume has {prompt} prompt and {generated.size} generated tokens, and {most} "
                "in all is the most it may have: it has ended",
                param="resumed",
            )
