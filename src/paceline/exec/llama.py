"""The native decoder: Llama, Mistral, Qwen2, Qwen3 and every model of their shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from paceline.exec.attention import Attention, AttentionMetadata, LayerShape
from paceline.exec.attention.cpu import CpuAttention
from paceline.exec.decoder_config import DecoderConfig
from paceline.exec.native import Kernels
from paceline.exec.native.fused import FusedDecoder, FusedLayer, can_fuse
from paceline.exec.native.packed import PANEL, PackedLinear, WeightMemory, packable
from paceline.exec.native.quantised import QuantisedLinear
from paceline.exec.operators import ACTIVATIONS, Rotation, gated, rms_norm, rms_norm_heads, rotate, rotation
from paceline.exec.stored import NAMES, StoredMatrix
from paceline.exec.weights import Weights


@dataclass
class Projection:
    """A linear map, its bias optional. `weight` [out, in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self.weight, self.bias)


@dataclass
class Layer:
    """The weights of one decoder layer. Query, key and value are one projection, gate and up another."""

    input_norm: torch.Tensor  # [hidden]
    qkv: Projection | PackedLinear
    qk_norm: torch.Tensor | None  # [heads + kv_heads, head_size]
    output: Projection | PackedLinear
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: Projection | PackedLinear
    down: Projection | PackedLinear
    window: int | None


class NativeDecoder:
    """See `Model`. Pre-norm decoder with rotary positions, grouped-query attention and a gated MLP.

    With native kernels the weights are held in their layout, once, and a step over `CpuAttention` is one native call;
    over any other attention only the products are native.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels | None = None,
        *,
        keep_quantised: bool = False,
    ) -> None:
        """`keep_quantised`: matrices that the checkpoint stores quantised stay so. It takes kernels."""
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.layers = [LayerShape(config.kv_heads, config.head_size, config.head_size)] * config.num_layers
        self.dtype, self.device = dtype, device
        frequencies, self._rope_scale = config.rope.frequencies()
        self._frequencies = frequencies.to(device)
        self._activation = ACTIVATIONS[config.activation]
        load = _Loader(config, weights, dtype, device, kernels, keep_quantised)
        self._embedding: torch.Tensor | PackedLinear
        if config.tied:
            self._head = load.head("model.embed_tokens")
            self._embedding = self._head.weight if isinstance(self._head, Projection) else self._head
        else:
            self._embedding = load.embedding("model.embed_tokens")
            self._head = load.head("lm_head")
        self._layers = [load.layer(index) for index in range(config.num_layers)]
        self._norm = load.norm("model.norm")
        self.weight_formats = load.formats()
        self._fused = self._fuse(kernels) if kernels is not None and can_fuse(config) else None

    def _fuse(self, kernels: Kernels) -> FusedDecoder:
        return FusedDecoder(
            kernels,
            self.config,
            self.dtype,
            [_fused(layer) for layer in self._layers],
            self._embedding,
            self._norm.float(),
            self._frequencies,
            self._rope_scale,
        )

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, attention: Attention, metadata: AttentionMetadata) -> torch.Tensor:
        if self._fused is not None and isinstance(attention, CpuAttention):
            return self._fused.forward(tokens, attention, metadata)
        hidden = self._embed(tokens)
        angles = rotation(metadata.positions, self._frequencies, self._rope_scale, self.dtype)
        epsilon = self.config.epsilon
        for index, layer in enumerate(self._layers):
            normed = rms_norm(hidden, layer.input_norm, epsilon)
            hidden = hidden + self._attend(index, layer, normed, angles, attention, metadata)
            normed = rms_norm(hidden, layer.mlp_norm, epsilon)
            hidden = hidden + layer.down(gated(layer.gate_up(normed), self._activation))
        return rms_norm(hidden, self._norm, epsilon)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._embedding[tokens] if isinstance(self._embedding, torch.Tensor) else self._embedding.rows(tokens)

    def _attend(
        self,
        index: int,
        layer: Layer,
        normed: torch.Tensor,
        angles: Rotation,
        attention: Attention,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        config = self.config
        tokens, size = normed.shape[0], config.head_size
        rotated = config.heads + config.kv_heads
        # [tokens, heads + 2 * kv_heads, size]: query heads, key heads, value heads
        heads = layer.qkv(normed).view(tokens, -1, size)
        query_key, value = heads[:, :rotated], heads[:, rotated:]
        if layer.qk_norm is not None:
            query_key = rms_norm_heads(query_key, layer.qk_norm, config.epsilon)
        query_key = rotate(query_key, angles)
        query, key = query_key[:, : config.heads], query_key[:, config.heads :]
        attended = attention(index, query, key, value, metadata, scale=size**-0.5, window=layer.window)
        return layer.output(attended.reshape(tokens, -1))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        head = self._head
        return head.wide(hidden) if isinstance(head, PackedLinear) else head(hidden).float()

    @torch.inference_mode()
    def largest(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self._head.largest(hidden) if isinstance(self._head, PackedLinear) else None


def _fused(layer: Layer) -> FusedLayer:
    def packed(projection: Projection | PackedLinear) -> PackedLinear:
        assert isinstance(projection, PackedLinear)
        return projection

    return FusedLayer(
        layer.input_norm.float(),
        packed(layer.qkv),
        None if layer.qk_norm is None else layer.qk_norm.float(),
        packed(layer.output),
        layer.mlp_norm.float(),
        packed(layer.gate_up),
        packed(layer.down),
        layer.window,
    )


class _Loader:
    """Takes the weights of one model out of a checkpoint, fusing what is computed together."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels | None,
        keep_quantised: bool,
    ) -> None:
        self.config, self.weights, self.dtype, self.device = config, weights, dtype, device
        self.kernels, self._keep = kernels, keep_quantised
        self._kinds: set[int] = set()
        self._memory = WeightMemory()

    def formats(self) -> str:
        """E.g. "Q4_1 and Q8_0": what matrices are held in."""
        names = sorted(NAMES[kind] for kind in self._kinds)
        return " and ".join(names) if names else str(self.dtype).removeprefix("torch.")

    def embedding(self, name: str) -> torch.Tensor | PackedLinear:
        shape = (self.config.vocab_size, self.config.hidden_size)
        return self._quantised([f"{name}.weight"], [shape], None) or self._stack([f"{name}.weight"], [shape])

    def head(self, name: str) -> Projection | PackedLinear:
        matrix = self.embedding(name)
        return self._linear([matrix], None) if isinstance(matrix, torch.Tensor) else matrix

    def norm(self, name: str, size: int | None = None) -> torch.Tensor:
        return self._stack([f"{name}.weight"], [(size or self.config.hidden_size,)])

    def layer(self, index: int) -> Layer:
        config, prefix = self.config, f"model.layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [(attention + "q_proj", queries), (attention + "k_proj", keys), (attention + "v_proj", keys)]
        return Layer(
            input_norm=self.norm(prefix + "input_layernorm"),
            qkv=self._projection(qkv, hidden, config.qkv_bias),
            qk_norm=self._qk_norm(attention) if config.qk_norm else None,
            output=self._projection([(attention + "o_proj", hidden)], queries, config.output_bias),
            mlp_norm=self.norm(prefix + "post_attention_layernorm"),
            gate_up=self._projection(
                [(mlp + "gate_proj", inner), (mlp + "up_proj", inner)], hidden, config.mlp_bias, paired=True
            ),
            down=self._projection([(mlp + "down_proj", hidden)], inner, config.mlp_bias),
            window=config.windows[index],
        )

    def _qk_norm(self, prefix: str) -> torch.Tensor:
        config = self.config
        query, key = (self.norm(f"{prefix}{which}_norm", config.head_size) for which in "qk")
        return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))

    def _projection(
        self, parts: list[tuple[str, int]], inputs: int, bias: bool, *, paired: bool = False
    ) -> Projection | PackedLinear:
        """`parts` are (name, outputs) stacked along the output. `paired`: packed panels of the two alternate."""
        names, shapes = [name + ".weight" for name, _ in parts], [(size, inputs) for _, size in parts]
        paired = paired and all(size % PANEL == 0 for _, size in parts)
        biases = self._stack([name + ".bias" for name, _ in parts], [(n,) for _, n in parts]) if bias else None
        quantised = self._quantised(names, shapes, biases, paired=paired)
        if quantised is not None:
            return quantised
        weight = self._stack(names, shapes)
        return self._linear(list(weight.split([size for _, size in parts])) if paired else [weight], biases)

    def _quantised(
        self,
        names: list[str],
        shapes: list[tuple[int, int]],
        bias: torch.Tensor | None,
        *,
        paired: bool = False,
    ) -> QuantisedLinear | None:
        """The matrices as the checkpoint stores them, if all of them are quantised and can be stacked so."""
        if self.kernels is None or not self._keep:
            return None
        found: list[StoredMatrix] = []
        for name, shape in zip(names, shapes, strict=True):
            stored = self.weights.stored(name, shape)
            if stored is None or self.kernels.panel_bytes(stored.kind, stored.inputs) == 0:
                return None
            found.append(stored)
        if not paired and any(rows % PANEL for rows, _ in shapes[:-1]):
            if len({stored.kind for stored in found}) > 1:
                return None
            found = [found[0]._replace(data=torch.cat([stored.data for stored in found]))]
        self._kinds |= {stored.kind for stored in found}
        return QuantisedLinear(self.kernels, found, self.dtype, bias, paired=paired, memory=self._memory)

    def _linear(self, matrices: list[torch.Tensor], bias: torch.Tensor | None) -> Projection | PackedLinear:
        """One matrix, or the two of a pair, as the kernels want them; they are parts of one tensor otherwise."""
        if self.kernels is not None and packable(matrices[0].shape[1]):
            return PackedLinear(self.kernels, matrices, bias, paired=len(matrices) > 1, memory=self._memory)
        return Projection(matrices[0] if len(matrices) == 1 else torch.cat(matrices), bias)

    def _stack(self, names: list[str], shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
        rows = sum(shape[0] for shape in shapes)
        stacked = torch.empty((rows, *shapes[0][1:]), dtype=self.dtype, device=self.device)
        begin = 0
        for name, shape in zip(names, shapes, strict=True):
            stacked[begin : begin + shape[0]].copy_(self.weights.tensor(name, shape))
            begin += shape[0]
        return stacked
