"""A whole decoder in one native call per step."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import NamedTuple

import torch

from paceline.exec.attention.cpu import CpuAttention, places_of
from paceline.exec.attention.interface import AttentionMetadata
from paceline.exec.decoder_config import DecoderConfig
from paceline.exec.native.library import FORMATS, Decoder, DecoderLayer, Kernels, Step
from paceline.exec.native.packed import PANEL, PackedLinear
from paceline.exec.native.quantised import QuantisedLinear

_ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1, "gelu": 2, "relu": 3}  # elementwise.h
_MOST_HEAD_SIZE = 256


class FusedLayer(NamedTuple):
    """What the native code needs of a layer. Norms are float32."""

    input_norm: torch.Tensor
    qkv: PackedLinear
    qk_norm: torch.Tensor | None
    output: PackedLinear
    mlp_norm: torch.Tensor
    gate_up: PackedLinear  # paired
    down: PackedLinear
    window: int | None


def can_fuse(config: DecoderConfig) -> bool:
    """Whether the native code covers a decoder of this shape; if not, its products are native one by one."""
    return (
        config.hidden_size % 2 == 0
        and config.intermediate_size % PANEL == 0
        and config.head_size <= _MOST_HEAD_SIZE
        and config.activation in _ACTIVATIONS
    )


class FusedDecoder:
    """The layers of a decoder and its embedding, laid out for the native code. Keeps what it points to alive."""

    def __init__(
        self,
        kernels: Kernels,
        config: DecoderConfig,
        dtype: torch.dtype,
        layers: Sequence[FusedLayer],
        embedding: torch.Tensor | PackedLinear,
        norm: torch.Tensor,
        frequencies: torch.Tensor,
        rope_scale: float,
    ) -> None:
        """`embedding` is [vocab, hidden], or packed and shared with the output projection."""
        self._kernels = kernels
        self._kept = (layers, embedding, norm, frequencies)
        self._hidden_size = config.hidden_size
        self._activation = kernels.activation_dtype(dtype)
        self._layers = (DecoderLayer * len(layers))(*(_structure(layer) for layer in layers))
        self._decoder = Decoder(
            FORMATS[dtype],
            config.num_layers,
            config.hidden_size,
            config.heads,
            config.kv_heads,
            config.head_size,
            0,
            0,
            config.intermediate_size,
            _ACTIVATIONS[config.activation],
            0 if isinstance(embedding, torch.Tensor) else 2 if isinstance(embedding, QuantisedLinear) else 1,
            config.epsilon,
            rope_scale,
            frequencies.data_ptr(),
            _place(embedding),
            norm.data_ptr(),
            self._layers,
        )
        self._attention: CpuAttention | None = None
        self._keys: list[torch.Tensor] = []

    def forward(self, tokens: torch.Tensor, attention: CpuAttention, metadata: AttentionMetadata) -> torch.Tensor:
        """Final hidden states [T, hidden], normed, as activations (bfloat16 or float32) of tokens [T] int64."""
        if self._keys is not attention.keys:
            self._connect(attention)
        hidden = torch.empty((tokens.shape[0], self._hidden_size), dtype=self._activation)
        tokens = tokens.contiguous()
        step = Step(
            places_of(metadata),
            tokens.data_ptr(),
            metadata.positions.data_ptr(),
            hidden.data_ptr(),
            torch.get_num_threads(),
        )
        self._kernels.forward(byref(self._decoder), byref(step), self._kernels.workspace)
        return hidden

    def _connect(self, attention: CpuAttention) -> None:
        for layer, cache in zip(self._layers, attention.caches, strict=True):
            layer.keys, layer.values = cache.keys, cache.values
            self._decoder.value_stride, self._decoder.kv_eight = cache.value_stride, cache.eight
        self._keys, self._attention = attention.keys, attention


def _place(embedding: torch.Tensor | PackedLinear) -> int:
    if isinstance(embedding, QuantisedLinear):
        return embedding.table.data_ptr()
    return embedding.panels.data_ptr() if isinstance(embedding, PackedLinear) else embedding.data_ptr()


def _structure(layer: FusedLayer) -> DecoderLayer:
    return DecoderLayer(
        layer.input_norm.data_ptr(),
        layer.qkv.structure,
        None if layer.qk_norm is None else layer.qk_norm.data_ptr(),
        layer.output.structure,
        layer.mlp_norm.data_ptr(),
        layer.gate_up.structure,
        layer.down.structure,
        None,
        None,
        layer.window or 0,
    )
