"""Paged attention by the native kernels."""

from __future__ import annotations

from ctypes import byref

import torch

from paceline.exec.attention.interface import AttentionMetadata, LayerShape
from paceline.exec.native.library import FORMATS, Cache, Kernels, Places
from paceline.exec.native.packed import PANEL, zeros

_MOST_SIZE = 256  # kMostSize in csrc/attention.h


def cpu_unusable(layers: list[LayerShape], block_size: int) -> str | None:
    """Why the native kernels cannot attend over these layers, or None."""
    if block_size % PANEL:
        return f"it needs a block size that is a multiple of {PANEL}"
    for shape in layers:
        if shape.key_size % 2 or max(shape.key_size, shape.value_size) > _MOST_SIZE:
            return f"it needs even head sizes of at most {_MOST_SIZE}"
    return None


SCALE_BYTES = 4  # of the scale of a token and head, in 8 bits


class CpuAttention:
    """See `Attention`, and csrc/attention.h for how K/V lie."""

    def __init__(self, kernels: Kernels, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> None:
        """`dtype`: of queries, keys and values as they come. `kv_dtype`: what they are kept in: the same, or int8 with
        a scale by token and head."""
        self.kernels, self.dtype, self.kv_dtype = kernels, dtype, kv_dtype or dtype
        self.keys: list[torch.Tensor] = []  # [blocks, elements of a block], by layer
        self.values: list[torch.Tensor] = []
        self.caches: list[Cache] = []
        self._activation = kernels.activation_dtype(dtype)

    def allocate(self, layers: list[LayerShape], num_blocks: int, block_size: int) -> None:
        self.keys, self.values, self.caches = [], [], []
        for shape in layers:
            stride = -(-shape.value_size // PANEL) * PANEL
            scale = SCALE_BYTES if self.kv_dtype == torch.int8 else 0
            keys = self._blocks(num_blocks, block_size * shape.kv_heads * (shape.key_size + scale))
            values = self._blocks(num_blocks, block_size * shape.kv_heads * (stride + scale))
            self.keys.append(keys)
            self.values.append(values)
            self.caches.append(
                Cache(
                    keys.data_ptr(),
                    values.data_ptr(),
                    shape.kv_heads,
                    shape.key_size,
                    shape.value_size,
                    stride,
                    self.kv_dtype == torch.int8,
                )
            )

    def _blocks(self, num_blocks: int, elements: int) -> torch.Tensor:
        return zeros(num_blocks * elements, self.kv_dtype).view(num_blocks, elements)

    def tensors(self) -> list[torch.Tensor]:
        return [*self.keys, *self.values]

    def copy_blocks(self, copies: torch.Tensor) -> None:
        source, destination = copies[:, 0], copies[:, 1]
        for cache in self.tensors():
            cache.index_copy_(0, destination, cache.index_select(0, source))

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
        tokens, heads, _ = query.shape
        queries = query.to(self._activation).contiguous()
        keys, values = key.to(self.dtype).contiguous(), value.to(self.dtype).contiguous()
        output = torch.empty((tokens, heads, value.shape[2]))
        self.kernels.attend(
            FORMATS[self.dtype],
            byref(self.caches[layer]),
            byref(places_of(metadata)),
            queries.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            heads,
            scale,
            softcap or 0.0,
            window or 0,
            output.data_ptr(),
            self.kernels.workspace,
            torch.get_num_threads(),
        )
        return output.to(query.dtype)


def places_of(metadata: AttentionMetadata) -> Places:
    """The same places for the kernels; `metadata` must outlive their use."""
    table = metadata.block_table
    return Places(
        metadata.positions.shape[0],
        table.shape[0],
        metadata.block_size,
        table.shape[1],
        metadata.slots.data_ptr(),
        metadata.query_starts.data_ptr(),
        metadata.lengths.data_ptr(),
        table.data_ptr(),
    )
