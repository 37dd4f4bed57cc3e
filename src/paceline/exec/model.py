"""What a model is to the executor."""

from __future__ import annotations

from typing import Protocol

import torch

from paceline.exec.attention import Attention, AttentionMetadata, LayerShape


class Model(Protocol):
    """A decoder-only language model over paged K/V. Built by `exec.loader.load_model`."""

    vocab_size: int
    max_positions: int  # longest sequence the model was made for
    layers: list[LayerShape]
    dtype: torch.dtype
    device: torch.device

    def forward(self, tokens: torch.Tensor, attention: Attention, metadata: AttentionMetadata) -> torch.Tensor:
        """Final hidden states [T, hidden] (normed, ready for `logits`) of the step's tokens [T] int64."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, vocab_size] float32, soft-capped or scaled as the model demands."""
        ...

    def largest(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The largest logit [S] float32 of each row and its token [S] int64, where that is cheaper than all logits.

        Ties go to the lowest token id, and NaN counts as largest. None: only `logits` can tell.
        """
        ...
