"""How a request wants its tokens chosen and when it wants to stop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from paceline.errors import RequestError

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping parameters of one request; names and meanings as in vLLM and the OpenAI API.

    `temperature` 0 is greedy. `seed` None draws one seed per request at arrival, so a request always has a seed and
    its tokens are a function of (logits, parameters, seed, position) alone. `max_tokens` None means up to the context.
    Raises RequestError naming the field on any value out of range.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # how many alternatives to report per generated token; 0: only the chosen token
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise RequestError(f"{spec.name} must be a finite number, got {value}", param=spec.name)
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name, kind in (("stop", str), ("stop_token_ids", int)):
            values = getattr(self, name)
            if not isinstance(values, Iterable) or not all(isinstance(value, kind) for value in values):
                what = "strings" if kind is str else "integers"
                raise RequestError(f"{name} must be a sequence of {what}, got {values!r}", param=name)
            object.__setattr__(self, name, tuple(values))
        self._in_range("n", 1, MAX_N)
        if self.max_tokens is not None:
            self._in_range("max_tokens", 1, 2**31 - 1)
        self._in_range("min_tokens", 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be at most max_tokens={self.max_tokens}, got {self.min_tokens}",
                param="min_tokens",
            )
        self._in_range("temperature", 0.0, 100.0)
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be above 0 and at most 1, got {self.top_p}", param="top_p")
        self._in_range("top_k", -1, 2**31 - 1)
        self._in_range("min_p", 0.0, 1.0)
        if not 0.0 < self.repetition_penalty <= 100.0:
            raise RequestError(
                f"repetition_penalty must be above 0 and at most 100, got {self.repetition_penalty}",
                param="repetition_penalty",
            )
        self._in_range("presence_penalty", -2.0, 2.0)
        self._in_range("frequency_penalty", -2.0, 2.0)
        if self.seed is not None:
            self._in_range("seed", -(2**63), 2**64 - 1)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", param="stop")
        if any(not text for text in self.stop):
            raise RequestError("stop must not contain an empty string", param="stop")
        if len(self.logit_bias) > 1024:
            raise RequestError(f"logit_bias takes at most 1024 entries, got {len(self.logit_bias)}", param="logit_bias")
        for token, bias in self.logit_bias.items():
            if not -100.0 <= bias <= 100.0:
                raise RequestError(
                    f"logit_bias values must be from -100 to 100, got {bias} for token {token}",
                    param="logit_bias",
                )
        if self.logprobs is not None:
            self._in_range("logprobs", 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            self._in_range("prompt_logprobs", 0, MAX_LOGPROBS)

    def _in_range(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise RequestError(f"{name} must be from {low} to {high}, got {value}", param=name)
