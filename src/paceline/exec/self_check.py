"""Proof at load that a model over paged K/V gives the logits it should. A wrong answer is never served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from paceline.errors import ModelError
from paceline.exec.attention import Attention
from paceline.exec.attention.metadata import build_metadata
from paceline.exec.model import Model

_BLOCK_SIZE = 4
_WORTH_REACHING = 256  # windows up to this length are outrun by the texts of the check

_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}
"""Largest error of a token's logits, relative to their own spread, that rounding explains."""

_OUTLIERS = {torch.float32: 0.0, torch.float16: 0.25, torch.bfloat16: 0.25}
"""Share of tokens that may err more: in half precision an expert that wins by a hair may lose to rounding."""


class Piece(NamedTuple):
    """Tokens `start` to `stop` of one text, computed in one step."""

    text: int
    start: int
    stop: int


def refusal(name: str, architecture: str, reason: str) -> ModelError:
    return ModelError(
        f"{name} (architecture {architecture}) cannot be served: {reason}; choose a model of an architecture "
        "that docs/models.md lists as served"
    )


def self_check(
    model: Model,
    reference: Callable[[torch.Tensor], torch.Tensor],
    attention: Attention,
    *,
    name: str,
    architecture: str,
    windows: Sequence[int | None] = (),
) -> None:
    """Compare two random texts, computed together in pieces over scattered blocks, with a reference run of each alone.

    Args:
        reference: [T] int64 tokens -> [T, vocab_size] logits of one text, computed whole and some other way.
        attention: an implementation with nothing allocated yet; left with a few blocks allocated.
        windows: sliding windows of the model; the texts outrun the shorter ones.

    Raises ModelError naming the model, the architecture and what differs.
    """
    length = max([24, *(window + 9 for window in windows if window and window <= _WORTH_REACHING)])
    length = min(length, model.max_positions)
    try:
        texts = _random_texts(model, [length, length - 5])
        expected = [reference(text) for text in texts]
        got = paged_logits(model, attention, texts, pieces_of(length))
    except Exception as error:  # whatever an unsuited architecture trips over
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise refusal(name, architecture, f"it failed its self-check ({first})") from error
    complaint = compare(got, expected, model.dtype)
    if complaint is not None:
        raise refusal(name, architecture, f"it failed its self-check: {complaint}")


def pieces_of(length: int) -> list[list[Piece]]:
    """Steps that compute texts of `length` and `length - 5` tokens: uneven chunks, changing order, decodes last."""
    first, second = length * 11 // 24, length * 4 // 24
    return [
        [Piece(0, 0, first), Piece(1, 0, second)],
        [Piece(1, second, length - 6), Piece(0, first, length - 1)],
        [Piece(0, length - 1, length), Piece(1, length - 6, length - 5)],
    ]


def paged_logits(
    model: Model, attention: Attention, texts: list[torch.Tensor], steps: list[list[Piece]]
) -> list[torch.Tensor]:
    """Logits [T, vocab_size] of each text, its pieces computed step by step over blocks in scattered order."""
    needed = [-(-len(text) // _BLOCK_SIZE) for text in texts]
    order = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(7)).numpy()
    tables = np.zeros((len(texts), max(needed)), np.int32)
    for table, count, end in zip(tables, needed, accumulate(needed), strict=True):
        table[:count] = order[end - count : end]
    attention.allocate(model.layers, len(order), _BLOCK_SIZE)
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    for pieces in steps:
        tokens = torch.cat([texts[piece.text][piece.start : piece.stop] for piece in pieces])
        starts = np.array([piece.start for piece in pieces], np.int32)
        counts = np.array([piece.stop - piece.start for piece in pieces], np.int32)
        rows = tables[[piece.text for piece in pieces]]
        metadata = build_metadata(starts, counts, rows, _BLOCK_SIZE, model.device)
        logits = model.logits(model.forward(tokens, attention, metadata))
        for piece, part in zip(pieces, torch.split(logits, counts.tolist()), strict=True):
            found[piece.text].append(part)
    return [torch.cat(parts) for parts in found]


def compare(got: list[torch.Tensor], expected: list[torch.Tensor], dtype: torch.dtype) -> str | None:
    """What is wrong with logits `got`, or None when rounding explains all differences."""
    errors = []
    for ours, theirs in zip(got, expected, strict=True):
        ours, theirs = ours.double(), theirs.double()
        if not bool(theirs.isfinite().all()):
            return f"its own logits are not finite in {str(dtype).removeprefix('torch.')}"
        if ours.shape != theirs.shape:
            return f"logits have the shape {list(ours.shape)} in place of {list(theirs.shape)}"
        spread = (theirs - theirs.mean(-1, keepdim=True)).norm(dim=-1).clamp_min(1e-12)
        errors.append((ours - theirs).norm(dim=-1) / spread)
    error = torch.cat(errors)
    wrong = ~(error <= _TOLERANCE[dtype])  # so written, NaN is wrong
    if float(wrong.double().mean()) > _OUTLIERS[dtype]:
        return f"logits in pieces differ from those of the whole text by {float(error.max()):.2g} of their spread"
    return None


def _random_texts(model: Model, lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(24)
    return [torch.randint(0, model.vocab_size, (length,), generator=generator).to(model.device) for length in lengths]
