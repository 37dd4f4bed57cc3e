"""Builds the `AttentionMetadata` of a step, without a Python loop over its rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from paceline.exec.attention.interface import AttentionMetadata

IntArray = npt.NDArray[np.int32]


class TokenPlaces(NamedTuple):
    """Where each token of the flat list comes from."""

    row: npt.NDArray[Any]  # int64 [T] index into the R rows of the step
    position: npt.NDArray[Any]  # int64 [T] position in its sequence


def token_places(starts: IntArray, counts: IntArray) -> TokenPlaces:
    """Lay R rows of `counts` tokens from `starts` on one flat list."""
    counts = counts.astype(np.int64)
    row = np.repeat(np.arange(len(counts)), counts)
    shift = starts - (counts.cumsum() - counts)
    return TokenPlaces(row, np.arange(len(row)) + shift[row])


def build_metadata(
    starts: IntArray,
    counts: IntArray,
    block_table: IntArray,
    block_size: int,
    device: torch.device,
    places: TokenPlaces | None = None,
) -> AttentionMetadata:
    """`starts`, `counts` [R] as in `StepPlan`; `block_table` [R, >= blocks of the longest row], one row per row."""
    if places is None:
        places = token_places(starts, counts)
    lengths = (starts + counts).astype(np.int32)
    longest = int(lengths.max())
    table = np.ascontiguousarray(block_table[:, : -(-longest // block_size)], np.int32)
    slots = table[places.row, places.position // block_size].astype(np.int64) * block_size
    slots += places.position % block_size
    query_starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=query_starts[1:])

    def send(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return AttentionMetadata(
        positions=send(places.position),
        slots=send(slots),
        query_starts=send(query_starts),
        starts=send(starts.astype(np.int32)),
        lengths=send(lengths),
        block_table=send(table),
        block_size=block_size,
        max_count=int(counts.max()),
        max_length=longest,
        counts_list=counts.tolist(),
        lengths_list=lengths.tolist(),
    )
