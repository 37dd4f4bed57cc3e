"""What a request may grow to, and whether it can ever run: asked at the door, once."""

from __future__ import annotations

from paceline.core.admissions import Admission
from paceline.core.config import SchedulerConfig
from paceline.core.request import Request
from paceline.errors import RequestError


def max_length(config: SchedulerConfig, request: Request) -> int:
    """Most tokens a sequence of the request may have: its own limit, the context, and what the KV can hold.

    The last token needs no K/V.
    """
    limit = config.max_model_len
    if request.params.max_tokens is not None:
        return min(limit, int(request.prompt.size) + request.params.max_tokens)
    return min(limit, config.num_blocks * config.block_size + 1)


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
