"""Repetition, frequency and presence penalties on just the tokens a sequence contains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from paceline.core.params import SamplingParams


class TokenCounts:
    """The distinct tokens of one sequence, and how often each was generated.

    Memory and the work per step grow with the distinct tokens of the sequence, never with the vocabulary. Tokens are
    taken from the tokens of the row each time, so that the counts hold what the sequence holds, whoever wrote it.
    """

    def __init__(self, params: SamplingParams, prompt_length: int, vocab_size: int) -> None:
        self.params = params
        self._prompt_length = prompt_length
        self._vocab_size = vocab_size
        self._seen = 0 if params.repetition_penalty != 1.0 else prompt_length  # only repetition looks at the prompt
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._generated = np.zeros(64, np.float32)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[D] distinct tokens."""
        return self._ids[: len(self._slots)]

    @property
    def generated(self) -> npt.NDArray[np.float32]:
        """[D] how often each was generated; 0 for a token of the prompt only."""
        return self._generated[: len(self._slots)]

    def update(self, tokens: npt.NDArray[np.int32]) -> None:
        """Take in the tokens of the sequence that are new since the last call. tokens: all known ones, int32 [N]."""
        if self._seen < self._prompt_length:
            self._add(tokens[self._seen : self._prompt_length], generated=0)
        self._add(tokens[max(self._seen, self._prompt_length) :], generated=1)
        self._seen = len(tokens)

    def _add(self, tokens: npt.NDArray[np.int32], generated: int) -> None:
        distinct, times = (tokens, np.ones(1)) if len(tokens) == 1 else np.unique(tokens, return_counts=True)
        for token, count in zip(distinct.tolist(), times.tolist(), strict=True):
            if token >= self._vocab_size:
                continue  # a placeholder in the prompt without a logit of its own
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._generated = np.concatenate([self._generated, np.zeros_like(self._generated)])
            self._ids[slot] = token
            self._generated[slot] += generated * count


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def apply_penalties(logits: torch.Tensor, indices: Sequence[int], counts: Sequence[TokenCounts]) -> None:
    """Penalise in place the rows `indices` of logits [S, vocab], each by its own counts.

    Repetition divides positive logits of tokens in the prompt or the output and multiplies negative ones (Keskar et
    al., CTRL, 2019); then frequency takes off its penalty once per time generated, and presence once if generated at
    all, as in the OpenAI API.
    """
    sizes = [len(count.ids) for count in counts]

    def per_token(values: Sequence[float], kind: npt.DTypeLike) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, kind), sizes)).to(logits.device)

    index = per_token(indices, np.int64)
    ids = torch.from_numpy(np.concatenate([count.ids for count in counts])).to(logits.device)
    generated = torch.from_numpy(np.concatenate([count.generated for count in counts])).to(logits.device)
    repetition = per_token([count.params.repetition_penalty for count in counts], np.float32)
    frequency = per_token([count.params.frequency_penalty for count in counts], np.float32)
    presence = per_token([count.params.presence_penalty for count in counts], np.float32)
    values = logits[index, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[index, ids] = values - frequency * generated - presence * (generated > 0)
