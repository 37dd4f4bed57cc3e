"""What is checked before a request goes anywhere near an engine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np

from paceline.core.params import SamplingParams
from paceline.engine.config import LONGEST_TIMEOUT
from paceline.engine.streams import RequestStream
from paceline.engine.tokenizer import Tokenizer
from paceline.errors import RequestError


class Door:
    """Turns token ids and parameters into a request that an engine can serve, or says why not."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_model_len: int, seed: int | None) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._seeds = random.Random(seed)
        self._numbers = 0

    def admit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "default",
        cache_salt: str | None = None,
        queue_timeout: float | None = None,
        timeout: float | None = None,
    ) -> RequestStream:
        """The stream of a new request, with a seed and a number of its own. Raises RequestError."""
        self._check_prompt(prompt)
        self._check_length(len(prompt), params)
        self._check_tokens(params.stop_token_ids, "stop_token_ids")
        self._check_tokens(params.logit_bias, "logit_bias")
        if not -(2**31) <= priority < 2**31:
            raise RequestError(f"priority must fit 32 bits, got {priority}", param="priority")
        for name, seconds in (("queue_timeout", queue_timeout), ("timeout", timeout)):
            if seconds is not None and not 0.0 < seconds <= LONGEST_TIMEOUT:
                raise RequestError(
                    f"{name} must be above 0 and at most {LONGEST_TIMEOUT:g} seconds, got {seconds}", param=name
                )
        if request_id is not None and "#" in request_id:
            raise RequestError("a request id must not contain '#'", param="request_id")
        self._numbers += 1
        drawn = self._seeds.getrandbits(63)  # drawn for every request, so that one's own seed shifts no other's
        return RequestStream(
            self._numbers,
            request_id or f"request-{self._numbers}",
            prompt,
            params,
            drawn if params.seed is None else params.seed,
            self.tokenizer,
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            queue_timeout=queue_timeout,
            timeout=timeout,
        )

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        if len(prompt) == 0:
            raise RequestError("the prompt is empty; it must have at least one token", param="prompt")
        try:
            tokens = np.asarray(prompt)
        except ValueError:  # ragged
            tokens = np.zeros((0, 0))
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise RequestError("prompt must be a text or a list of token ids", param="prompt")
        wrong = tokens[(tokens < 0) | (tokens >= self.vocab_size)]
        if wrong.size:
            raise RequestError(
                f"prompt holds token id {int(wrong[0])}, but the vocabulary has ids 0 to {self.vocab_size - 1}",
                param="prompt",
            )

    def _check_length(self, prompt: int, params: SamplingParams) -> None:
        limit = self.max_model_len
        wanted = 1 if params.max_tokens is None else params.max_tokens
        if prompt + wanted <= limit:
            return
        if params.max_tokens is None:
            asked = f"your prompt has {prompt} tokens, which leaves no room to generate any. Please shorten the prompt."
        else:
            asked = (
                f"you requested {prompt + wanted} tokens ({prompt} in the prompt, {wanted} to generate). "
                "Please shorten the prompt or lower max_tokens."
            )
        raise RequestError(
            f"This model's maximum context length is {limit} tokens. However, {asked}",
            param="prompt" if prompt >= limit else "max_tokens",
            code="context_length_exceeded",
        )

    def _check_tokens(self, tokens: Iterable[int], param: str) -> None:
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise RequestError(
                    f"{param} names token id {token}, but the vocabulary has ids 0 to {self.vocab_size - 1}",
                    param=param,
                )
