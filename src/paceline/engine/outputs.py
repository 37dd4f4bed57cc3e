"""What a caller gets back: deltas while a request streams, whole results when it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class TokenLogprob(NamedTuple):
    """One token with its log-probability, decoded."""

    token_id: int
    text: str  # the token alone; invalid UTF-8 shows as U+FFFD, see `bytes`
    bytes: bytes  # the token's own bytes, exact; empty when the vocabulary has no bytes for it
    logprob: float
    rank: int  # 1 is the most likely token


class PositionLogprobs(NamedTuple):
    """Log-probabilities at one position: the token that stands there, and the most likely alternatives."""

    chosen: TokenLogprob
    top: list[TokenLogprob]  # most likely first; as many as were asked for


@dataclass(frozen=True)
class SequenceDelta:
    """What is new in one sequence of a request since its last delta.

    `text` may lag behind `token_ids`: an incomplete character, or text that may become a stop string, is held back.
    `finish_reason` is set on the last delta of the sequence only: "stop", "length", "abort" or "expired". `stop_reason`
    is the stop string or the stop token id that ended it, None for the end-of-sequence token and for other reasons.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None  # along `token_ids`; None when not asked for
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class RequestOutput:
    """One item of a stream. Prompt fields are the same on every item, apart from `prompt_logprobs`.

    `prompt_logprobs` is given once, on the first item, when it was asked for: one entry per prompt token, None for the
    first. `cached_tokens` counts prompt tokens taken from the cache at the first admission. `generated_tokens` counts
    all tokens of all sequences so far. `finished` is True on the last item, when every sequence has finished.
    `queue_seconds`: how long the first that started had waited. `expired`: on the last item, in words, which time was
    up when a sequence ended with "expired".
    """

    request_id: str
    prompt_token_ids: list[int]
    sequences: list[SequenceDelta]
    finished: bool
    cached_tokens: int = 0
    generated_tokens: int = 0
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    queue_seconds: float | None = None
    expired: str = ""


@dataclass
class Completion:
    """One generated sequence, whole. Fields as in SequenceDelta."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass
class CompletionResult:
    """A request and everything generated for it."""

    request_id: str
    prompt: str | None  # None when the prompt was given as token ids
    prompt_token_ids: list[int]
    completions: list[Completion]
    cached_tokens: int = 0
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    queue_seconds: float | None = None
    expired: str = ""

    @property
    def text(self) -> str:
        """Text of the first sequence."""
        return self.completions[0].text

    @property
    def finished(self) -> bool:
        return all(completion.finish_reason is not None for completion in self.completions)

    def add(self, output: RequestOutput) -> None:
        """Take in the next item of the request's stream."""
        self.cached_tokens, self.queue_seconds = output.cached_tokens, output.queue_seconds
        self.expired = output.expired or self.expired
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        for delta in output.sequences:
            completion = self.completions[delta.index]
            completion.text += delta.text
            completion.token_ids.extend(delta.token_ids)
            if delta.logprobs is not None:
                completion.logprobs = (completion.logprobs or []) + delta.logprobs
            if delta.finish_reason is not None:
                completion.finish_reason = delta.finish_reason
                completion.stop_reason = delta.stop_reason

    @classmethod
    def empty(cls, request_id: str, prompt: str | None, prompt_token_ids: list[int], n: int) -> CompletionResult:
        """A result of `n` sequences to which nothing was added yet."""
        return cls(request_id, prompt, prompt_token_ids, [Completion(index) for index in range(n)])
