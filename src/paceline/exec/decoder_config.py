"""The shape of a Llama-family decoder, read from a Hugging Face config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import ModelError
from paceline.exec.operators import ACTIVATIONS
from paceline.exec.rope import FOREIGN_KINDS, NATIVE_KINDS, Rope, rope_of

_FAMILY: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "qwen2": {"use_sliding_window": False, "max_window_layers": 28, "sliding_window": 4096},
    "qwen3": {"use_sliding_window": False, "max_window_layers": 28, "sliding_window": 4096, "head_dim": 128},
}
"""What a config of each family means where it says nothing."""

_CAUSAL = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


class NotNative(Exception):
    """The native decoder does not know this architecture or one of its features; the message says which."""


@dataclass(frozen=True)
class DecoderConfig:
    """Everything the native decoder needs to know. Sizes in elements."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    epsilon: float
    activation: str
    rope: Rope
    max_positions: int
    windows: tuple[int | None, ...]  # by layer
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool  # the output projection is the embedding

    def parameters(self) -> int:
        """Number of weights, biases and norms aside."""
        attention = self.hidden_size * self.head_size * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * layer + self.vocab_size * self.hidden_size * (1 if self.tied else 2)


def decoder_config(config: dict[str, Any], name: str) -> DecoderConfig:
    """Read a config. `name` is the file it came from, for messages.

    Raises NotNative for what only transformers may know, ModelError for a config that is wrong for its family.
    """
    try:
        return _read(config, name)
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{name}: its config holds a value of the wrong type ({error}); download it again") from error


def _read(config: dict[str, Any], name: str) -> DecoderConfig:
    family = str(config.get("model_type"))
    if family not in _FAMILY:
        raise NotNative(f"architecture {family!r}")
    architectures = config.get("architectures") or [_CAUSAL[family]]
    if _CAUSAL[family] not in architectures:
        raise NotNative(f"architecture {architectures[0]!r}")
    given = {**_FAMILY[family], **config}

    def whole(key: str, default: int | None = None) -> int:
        value = given.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{name}: {key} must be a whole number of at least 1, got {value!r}")
        return value

    heads, hidden = whole("num_attention_heads"), whole("hidden_size")
    head_size = whole("head_dim", hidden // heads)
    kv_heads = whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"{name}: num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    if head_size % 2:
        raise ModelError(f"{name}: head_dim must be even, got {head_size}")
    max_positions = whole("max_position_embeddings", 2048)
    layers = whole("num_hidden_layers")
    bias = bool(given.get("attention_bias", False))
    return DecoderConfig(
        vocab_size=whole("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate_size=whole("intermediate_size"),
        epsilon=float(given.get("rms_norm_eps") or 1e-6),
        activation=_activation(given),
        rope=_rope(given, head_size, max_positions, name),
        max_positions=max_positions,
        windows=_windows(family, given, layers),
        qkv_bias=family == "qwen2" or (bias and family in ("llama", "qwen3")),
        output_bias=bias and family in ("llama", "qwen3"),
        mlp_bias=family == "llama" and bool(given.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        tied=bool(given.get("tie_word_embeddings", False)),
    )


def with_biases(config: DecoderConfig, names: set[str]) -> DecoderConfig:
    """`config` with the biases a checkpoint of these tensor names has, for files that do not state them (GGUF)."""
    first = "model.layers.0."
    return replace(
        config,
        qkv_bias=first + "self_attn.q_proj.bias" in names,
        output_bias=first + "self_attn.o_proj.bias" in names,
        mlp_bias=first + "mlp.down_proj.bias" in names,
    )


def _activation(config: dict[str, Any]) -> str:
    name = str(config.get("hidden_act") or "silu")
    if name not in ACTIVATIONS:
        raise NotNative(f"activation {name!r}")
    return name


def _rope(config: dict[str, Any], head_size: int, max_positions: int, name: str) -> Rope:
    if float(config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise NotNative("rotation of a part of each head")
    rope = rope_of(config, head_size, max_positions)
    if rope.kind in FOREIGN_KINDS:
        raise NotNative(f"rope scaling {rope.kind!r}")
    if rope.kind not in NATIVE_KINDS:
        known = ", ".join((*NATIVE_KINDS, *FOREIGN_KINDS))
        raise ModelError(f"{name}: rope scaling {rope.kind!r} is not known; it must be one of {known}")
    if float(rope.parameters.get("partial_rotary_factor") or 1.0) != 1.0:
        raise NotNative("rotation of a part of each head")
    try:
        rope.frequencies()
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    return rope


def _windows(family: str, config: dict[str, Any], layers: int) -> tuple[int | None, ...]:
    """Sliding window by layer: everywhere in Mistral, by `layer_types` or from `max_window_layers` on in Qwen."""
    window = config.get("sliding_window")
    if family == "llama" or window is None:
        return (None,) * layers
    if family == "mistral":
        return (int(window),) * layers
    if not config.get("use_sliding_window"):
        return (None,) * layers
    kinds = config.get("layer_types")
    if kinds is None:
        first = int(config["max_window_layers"])
        return tuple(int(window) if layer >= first else None for layer in range(layers))
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise NotNative(f"layer types {sorted(set(map(str, kinds)))}")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
