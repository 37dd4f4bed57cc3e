"""Paged attention on CUDA through torch's own variable-length flash attention."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from paceline.exec.attention.interface import AttentionMetadata, LayerShape
from paceline.exec.attention.metadata import build_metadata
from paceline.exec.attention.reference import ReferenceAttention


class VarlenAttention(ReferenceAttention):
    """See `Attention`. Shares the K/V layout of the reference, which serves what the kernel cannot (soft caps)."""

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
        if softcap is not None or key.shape[2] != value.shape[2]:
            return super().__call__(layer, query, key, value, metadata, scale=scale, window=window, softcap=softcap)
        from torch.nn.attention.varlen import varlen_attn

        self.write(layer, key, value, metadata)
        attended = varlen_attn(
            query,
            self._blocks(self.keys[layer]),
            self._blocks(self.values[layer]),
            metadata.query_starts,
            None,
            metadata.max_count,
            metadata.max_length,
            scale=scale,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
            seqused_k=metadata.lengths,
            block_table=metadata.block_table,
        )
        assert isinstance(attended, torch.Tensor)  # a tuple comes only to those who ask for more
        return attended

    def _blocks(self, cache: torch.Tensor) -> torch.Tensor:
        return cache.view(-1, self.block_size, *cache.shape[1:])


def varlen_unusable(dtype: torch.dtype, device: torch.device, layers: list[LayerShape], block_size: int) -> str | None:
    """Why `VarlenAttention` cannot serve these layers, or None. Tries it on a small step and compares the answer."""
    if device.type != "cuda":
        return "torch's paged attention needs CUDA"
    if dtype not in (torch.float16, torch.bfloat16):
        return "torch's paged attention computes in float16 and bfloat16 only"
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no varlen_attn"
    if not {"block_table", "seqused_k"} <= set(inspect.signature(varlen_attn).parameters):
        return f"varlen_attn of torch {torch.__version__} does not read block tables"
    for shape in sorted(set(layers)):
        if shape.key_size != shape.value_size:
            continue
        try:
            difference = _difference(dtype, device, shape, block_size)
        except Exception as error:  # whatever a kernel refuses, the reference serves
            return f"varlen_attn refuses {shape} with blocks of {block_size}: {str(error).splitlines()[0]}"
        if not difference < 0.05:
            return f"varlen_attn differs from the reference by {difference:.3g} on {shape}"
    return None


def _difference(dtype: torch.dtype, device: torch.device, shape: LayerShape, block_size: int) -> float:
    """Largest difference to the reference over a decode row, a prompt and a chunk, with and without a window."""
    starts = np.array([block_size + 2, 0, block_size], np.int32)
    counts = np.array([1, block_size + 3, 5], np.int32)
    table = np.array([[5, 1], [0, 4], [2, 3]], np.int32)
    metadata = build_metadata(starts, counts, table, block_size, device)
    generator = torch.Generator(device).manual_seed(0)

    def draw(heads: int, tokens: int = int(counts.sum())) -> torch.Tensor:
        numbers = torch.randn(tokens, heads, shape.key_size, generator=generator, device=device)
        return numbers.to(dtype)

    query, key, value = draw(2 * shape.kv_heads), draw(shape.kv_heads), draw(shape.kv_heads)
    earlier = [draw(shape.kv_heads, 6 * block_size) for _ in range(2)]
    worst = 0.0
    options: list[dict[str, Any]] = [{}, {"window": 4}]
    for option in options:
        answers = []
        for attention in (ReferenceAttention(dtype, device), VarlenAttention(dtype, device)):
            attention.allocate([shape], 6, block_size)
            attention.keys[0].copy_(earlier[0])
            attention.values[0].copy_(earlier[1])
            scale = shape.key_size**-0.5
            answers.append(attention(0, query, key, value, metadata, scale=scale, **option).float())
        worst = max(worst, (answers[0] - answers[1]).abs().max().item())
    return worst
