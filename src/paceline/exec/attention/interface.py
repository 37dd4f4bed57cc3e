"""What every attention implementation is given and must do.

The rows of a step are one flat token list without padding: T tokens of R rows, row r owning tokens
`query_starts[r] : query_starts[r + 1]`, which are its positions `starts[r]` to `lengths[r] - 1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch


class LayerShape(NamedTuple):
    """The K/V of one layer: heads and sizes of one token."""

    kv_heads: int
    key_size: int
    value_size: int


@dataclass
class AttentionMetadata:
    """Where the tokens of a step sit. Tensors are on the model's device."""

    positions: torch.Tensor  # [T] int64, position of each token in its sequence
    slots: torch.Tensor  # [T] int64, where its K/V go: block * block_size + offset
    query_starts: torch.Tensor  # [R + 1] int32, cumulative token counts
    starts: torch.Tensor  # [R] int32, tokens with K/V before this step
    lengths: torch.Tensor  # [R] int32, tokens with K/V after this step
    block_table: torch.Tensor  # [R, B] int32, B = blocks of the longest row of the step
    block_size: int
    max_count: int  # longest row of the step, in query tokens
    max_length: int  # longest row of the step, in tokens with K/V
    counts_list: list[int]  # the same numbers on the host, for implementations that loop over rows
    lengths_list: list[int]


class Attention(Protocol):
    """Writes the K/V of all tokens of a step, then attends causally within each row. Owns the K/V tensors.

    All writes of a layer come before all its reads, so a row may read blocks that another row of the same step writes.
    """

    def allocate(self, layers: list[LayerShape], num_blocks: int, block_size: int) -> None:
        """Create the K/V tensors for `num_blocks` blocks of every layer."""
        ...

    def tensors(self) -> list[torch.Tensor]:
        """The K/V, each [num_blocks, ...] and contiguous: views of what was allocated, always in the same order."""
        ...

    def copy_blocks(self, copies: torch.Tensor) -> None:
        """[C, 2] int64 (source, destination): copy whole blocks in all layers, reading all before writing any."""
        ...

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,  # [T, heads, key_size]
        key: torch.Tensor,  # [T, kv_heads, key_size]
        value: torch.Tensor,  # [T, kv_heads, value_size]
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,  # attend to the last `window` positions, the token's own included; None: all
        softcap: float | None = None,  # logits become softcap * tanh(logits / softcap)
    ) -> torch.Tensor:  # [T, heads, value_size]
        ...
