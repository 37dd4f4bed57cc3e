"""Requests of scripts, and what each says when it runs alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.params import SamplingParams
from paceline.core.request import FinishReason

MASK = (1 << 64) - 1
POISON = np.uint64(0)
EOS = 1
VOCABULARY = 5


def mix(mark: int, value: int) -> int:
    mark = ((mark ^ (value + 0x9E3779B9)) * 0xD6E8FEB86659FD93) & MASK
    return mark ^ (mark >> 32)


@dataclass(frozen=True)
class Ask:
    """A request of a script."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int | None = 4
    n: int = 1
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = True
    priority: int = 0
    arrival: float = 0.0
    salt: str | None = None
    seed: int | None = None  # None: greedy, so equal prompts continue equally
    prompt_logprobs: int | None = None
    resumed: tuple[tuple[int, int], ...] | None = None  # (sequence index, tokens generated before)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            n=self.n,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            temperature=0.0 if self.seed is None else 1.0,
            prompt_logprobs=self.prompt_logprobs,
        )

    def sequence_ids(self) -> list[str]:
        indexes = range(self.n) if self.resumed is None else [index for index, _ in self.resumed]
        return [self.id if index == 0 else f"{self.id}#{index}" for index in indexes]


class Reference:
    """What one sequence says when it runs alone, and the marks its K/V must carry."""

    def __init__(self, ask: Ask, index: int, config: SchedulerConfig) -> None:
        self.ask = ask
        self.name = ask.id if index == 0 else f"{ask.id}#{index}"
        self.tokens = list(ask.prompt)
        self.reason = FinishReason.LENGTH
        limit = config.max_model_len
        if ask.max_tokens is None:
            limit = min(limit, config.num_blocks * config.block_size + 1)
        else:
            limit = min(limit, len(ask.prompt) + ask.max_tokens)
        self.limit = limit
        mark = mix(7, sum((byte + 1) << (8 * at) for at, byte in enumerate((ask.salt or "").encode())))
        marks = []
        for token in ask.prompt:
            mark = mix(mark, token)
            marks.append(mark)
        self.chooser = 0 if ask.seed is None else mix(ask.seed, index) | 1
        while len(self.tokens) < limit:
            token = self.choose(mark)
            self.tokens.append(token)
            mark = mix(mark, token)
            marks.append(mark)
            ends = (token in config.eos_token_ids and not ask.ignore_eos) or token in ask.stop_token_ids
            if ends and len(self.tokens) - len(ask.prompt) >= ask.min_tokens:
                self.reason = FinishReason.STOP
                break
        self.marks = np.array(marks, np.uint64)

    def choose(self, mark: int) -> int:
        return (mix(mark, self.chooser) >> 20) % VOCABULARY
