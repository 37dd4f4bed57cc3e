"""Paged attention in plain torch, on any device: the oracle for every other implementation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from paceline.exec.attention.interface import AttentionMetadata, LayerShape

_GATHER_TOKENS = 1 << 16  # most K/V tokens copied out of the blocks at once


class DecodeGroup(NamedTuple):
    """Rows with one new token and similar lengths, attended together with their K/V padded to the longest."""

    queries: torch.Tensor  # [G] int64 places in the token list
    slots: torch.Tensor  # [G * L] int64
    mask: torch.Tensor | None  # [G, 1, 1, L] True where to attend; None: everywhere


class PrefillRow(NamedTuple):
    """One row with several new tokens: `begin` to `end` of the token list."""

    begin: int
    end: int
    slots: torch.Tensor | None  # [L] int64; None: the row has no K/V besides the step's own
    mask: torch.Tensor | None  # [count, L] True where to attend; None: plain causal over the row's own tokens


class _Layout(NamedTuple):
    groups: list[DecodeGroup]
    prefills: list[PrefillRow]


class ReferenceAttention:
    """See `Attention`. K/V of a layer are [num_blocks * block_size, kv_heads, size].

    A row's padding repeats its own last token and is masked, so that nothing of another sequence, not even a NaN,
    reaches it.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.block_size = 0
        self._step: AttentionMetadata | None = None
        self._layouts: dict[int | None, _Layout] = {}  # of `_step`, by window: the same for all its layers

    def allocate(self, layers: list[LayerShape], num_blocks: int, block_size: int) -> None:
        slots = num_blocks * block_size
        self.block_size = block_size
        self.keys = [self._zeros(slots, shape.kv_heads, shape.key_size) for shape in layers]
        self.values = [self._zeros(slots, shape.kv_heads, shape.value_size) for shape in layers]

    def _zeros(self, *shape: int) -> torch.Tensor:
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        # numpy's zeros are pages the system hands out on first touch: a large cache costs nothing until it is used.
        size = int(np.prod(shape)) * self.dtype.itemsize
        return torch.from_numpy(np.zeros(size, np.uint8)).view(self.dtype).view(shape)

    def tensors(self) -> list[torch.Tensor]:
        return [cache.view(-1, self.block_size, *cache.shape[1:]) for cache in (*self.keys, *self.values)]

    def copy_blocks(self, copies: torch.Tensor) -> None:
        source, destination = copies[:, 0], copies[:, 1]
        for blocks in self.tensors():
            blocks.index_copy_(0, destination, blocks.index_select(0, source))

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata) -> None:
        """Put the step's K/V into their slots."""
        self.keys[layer].index_copy_(0, metadata.slots, key)
        self.values[layer].index_copy_(0, metadata.slots, value)

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        self.write(layer, key, value, metadata)
        layout = self._layout(metadata, window)
        keys, values = self.keys[layer], self.values[layer]
        if not layout.prefills and len(layout.groups) == 1:
            return _decode(query, keys, values, layout.groups[0], scale, softcap)
        output = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
        for group in layout.groups:
            part = query.index_select(0, group.queries)
            output.index_copy_(0, group.queries, _decode(part, keys, values, group, scale, softcap))
        for row in layout.prefills:
            own = slice(row.begin, row.end)
            if row.slots is None:
                row_keys, row_values = key[own], value[own]
            else:
                row_keys, row_values = keys.index_select(0, row.slots), values.index_select(0, row.slots)
            output[own] = _prefill(query[own], row_keys, row_values, row.mask, scale, softcap)
        return output

    def _layout(self, metadata: AttentionMetadata, window: int | None) -> _Layout:
        if self._step is not metadata:
            self._step, self._layouts = metadata, {}
        if window not in self._layouts:
            self._layouts[window] = lay_out(metadata, window)
        return self._layouts[window]


def lay_out(metadata: AttentionMetadata, window: int | None) -> _Layout:
    """Sort the rows of a step into decode groups and prefills, and find the slots each reads."""
    counts = np.asarray(metadata.counts_list)
    lengths = np.asarray(metadata.lengths_list)
    ends = counts.cumsum()
    decoding = np.flatnonzero(counts == 1)
    groups = [_decode_group(metadata, rows, lengths, ends, window) for rows in _similar(decoding, lengths, window)]
    prefills = [
        _prefill_row(metadata, int(row), int(ends[row] - counts[row]), int(counts[row]), int(lengths[row]), window)
        for row in np.flatnonzero(counts > 1)
    ]
    return _Layout(groups, prefills)


def _similar(rows: npt.NDArray[Any], lengths: npt.NDArray[Any], window: int | None) -> list[npt.NDArray[Any]]:
    """Split decode rows so that padding at most doubles what is read, and no group copies too much at once."""
    if not rows.size:
        return []
    reads = lengths[rows] if window is None else np.minimum(lengths[rows], window)
    buckets = np.ceil(np.log2(np.maximum(reads, 64))).astype(int)
    groups = []
    for bucket in np.unique(buckets):
        members = rows[buckets == bucket]
        most = max(1, _GATHER_TOKENS >> int(bucket))
        groups += [members[first : first + most] for first in range(0, len(members), most)]
    return groups


def _decode_group(
    metadata: AttentionMetadata,
    rows: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    ends: npt.NDArray[Any],
    window: int | None,
) -> DecodeGroup:
    device, size = metadata.slots.device, metadata.block_size
    length = torch.from_numpy(lengths[rows]).to(device)
    first = length.new_zeros(len(rows)) if window is None else (length - window).clamp_(min=0)
    reads = lengths[rows] if window is None else np.minimum(lengths[rows], window)
    longest = int(reads.max())
    positions = first[:, None] + torch.arange(longest, device=device)
    mask = None if int(reads.min()) == longest else (positions < length[:, None])[:, None, None]
    positions = torch.minimum(positions, length[:, None] - 1)
    table = metadata.block_table.index_select(0, torch.from_numpy(rows).to(device)).long()
    slots = table.gather(1, positions // size) * size + positions % size
    return DecodeGroup(torch.from_numpy(ends[rows] - 1).to(device), slots.view(-1), mask)


def _prefill_row(
    metadata: AttentionMetadata, row: int, begin: int, count: int, length: int, window: int | None
) -> PrefillRow:
    device, size = metadata.slots.device, metadata.block_size
    start = length - count
    if window is not None and window >= length:
        window = None
    if start == 0 and window is None:
        return PrefillRow(begin, begin + count, None, None)
    first = 0 if window is None else max(0, start - window + 1)
    keys = torch.arange(first, length, device=device)
    queries = torch.arange(start, length, device=device)[:, None]
    mask = keys <= queries
    if window is not None:
        mask &= keys > queries - window
    slots = metadata.block_table[row].long()[keys // size] * size + keys % size
    return PrefillRow(begin, begin + count, slots, mask)


def _decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: DecodeGroup,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """`query` [G, heads, key_size] -> [G, heads, value_size]. The heads that share K/V are its query length."""
    rows, heads, size = query.shape
    kv_heads = keys.shape[1]
    longest = group.slots.shape[0] // rows
    key = keys.index_select(0, group.slots).view(rows, longest, kv_heads, -1).transpose(1, 2)
    value = values.index_select(0, group.slots).view(rows, longest, kv_heads, -1).transpose(1, 2)
    folded = query.view(rows, kv_heads, heads // kv_heads, size)
    if softcap is None:
        attended = functional.scaled_dot_product_attention(folded, key, value, attn_mask=group.mask, scale=scale)
    else:
        attended = _softcapped(folded, key, value, group.mask, scale, softcap)
    return attended.reshape(rows, heads, -1)


def _prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """`query` [count, heads, key_size], K/V [L, kv_heads, size] -> [count, heads, value_size]."""
    heads, kv_heads = query.shape[1], key.shape[1]
    # [1, heads, tokens, size]
    query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
    if softcap is None:
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=heads != kv_heads
        )
    else:
        if mask is None:
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril_()
        shared = heads // kv_heads
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        attended = _softcapped(query, key, value, mask, scale, softcap)
    return attended[0].transpose(0, 1)


def _softcapped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """Attention whose logits are capped as Gemma 2's: softcap * tanh(logits / softcap), in float32."""
    logits = torch.matmul(query, key.transpose(-1, -2)).float().mul_(scale / softcap).tanh_().mul_(softcap)
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf"))
    return torch.matmul(logits.softmax(-1).to(value.dtype), value)
