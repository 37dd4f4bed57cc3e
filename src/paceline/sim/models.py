"""The shape of a model: what its step times depend on. From a table, or from any Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, ModelError
from paceline.sim.json_files import read_json


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer. For a mixture of experts `ffn` is the width of one expert."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int  # of a dense layer, or of one expert
    vocabulary: int
    context: int  # most positions
    experts: int = 0  # routed experts of a layer; 0: dense
    active_experts: int = 0  # of these, used by one token
    shared_ffn: int = 0  # width of what every token passes beside its experts
    dense_layers: int = 0  # layers without experts
    dense_ffn: int = 0  # and their width
    tied: bool = False  # input and output embeddings are the same weights
    gated: bool = True  # three matrices in the feed-forward, otherwise two
    window: int = 0  # tokens that layers with a sliding window look back
    window_layers: int = 0  # how many layers have one
    kv_latent: int = 0  # elements a token keeps per layer under latent attention; 0: keys and values of kv_heads

    @cached_property
    def attention_weights(self) -> int:
        """Weights of all layers' attention projections."""
        width = self.heads * self.head_size
        return self.layers * self.hidden * (2 * width + 2 * self.kv_heads * self.head_size)

    @cached_property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    @cached_property
    def dense_weights(self) -> int:
        """Weights of the layers that every token passes: attention, dense and shared feed-forward, routers."""
        moe = self.layers - self.dense_layers if self.experts else 0
        wide = self.dense_layers * self.dense_ffn if self.experts else self.layers * self.ffn
        routers = moe * self.hidden * self.experts
        return self.attention_weights + self._matrices * self.hidden * (wide + moe * self.shared_ffn) + routers

    @cached_property
    def expert_weights(self) -> int:
        """Weights of one routed expert, over all layers that have them."""
        return self._matrices * self.hidden * self.ffn * (self.layers - self.dense_layers) if self.experts else 0

    @property
    def head_weights(self) -> int:
        """Weights of the output projection."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, embeddings included."""
        embeddings = self.head_weights * (1 if self.tied else 2)
        return self.dense_weights + self.experts * self.expert_weights + embeddings

    @property
    def kv_elements(self) -> int:
        """Numbers that one token keeps in the KV cache, all layers together."""
        return self.layers * (self.kv_latent or 2 * self.kv_heads * self.head_size)


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocabulary: int, context: int, **more: Any
) -> ModelShape:
    size = more.pop("head_size", hidden // heads)
    return ModelShape(name, layers, hidden, heads, kv, size, ffn, vocabulary, context, **more)


MODELS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _llama("smollm2-135m", 30, 576, 9, 3, 1536, 49152, 8192, tied=True),
        _llama("llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256, 131072, tied=True),
        _llama("llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256, 131072, head_size=128, tied=True),
        _llama("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256, 131072),
        _llama("llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256, 131072),
        _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256, 131072),
        _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
        _llama("llama-2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
        _llama("llama-2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
        _llama("mistral-7b", 32, 4096, 32, 8, 14336, 32768, 32768),
        _llama("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 32768),
        _llama("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, 32768),
        _llama("qwen3-8b", 36, 4096, 32, 8, 12288, 151936, 40960, head_size=128),
        _llama("qwen3-32b", 64, 5120, 64, 8, 25600, 151936, 40960, head_size=128),
        _llama("qwen3-30b-a3b", 48, 2048, 32, 4, 768, 151936, 40960, head_size=128, experts=128, active_experts=8),
        _llama("qwen3-235b-a22b", 94, 4096, 64, 4, 1536, 151936, 40960, head_size=128, experts=128, active_experts=8),
        _llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, 32768, experts=8, active_experts=2),
        _llama("gpt-oss-20b", 24, 2880, 64, 8, 2880, 201088, 131072, head_size=64, experts=32, active_experts=4,
               window=128, window_layers=12),
        _llama("gpt-oss-120b", 36, 2880, 64, 8, 2880, 201088, 131072, head_size=64, experts=128, active_experts=4,
               window=128, window_layers=18),
        _llama("deepseek-v3", 61, 7168, 128, 128, 2048, 129280, 163840, head_size=128, experts=256, active_experts=8,
               shared_ffn=2048, dense_layers=3, dense_ffn=18432, kv_latent=576),
    )
}  # fmt: skip

_ALIASES = {
    "deepseek-r1": "deepseek-v3",
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
}


def model(name: str) -> ModelShape:
    """A model of the table by name (an organisation in front and "-instruct" behind do not matter), or a
    `config.json`, or the directory with one. ConfigError or ModelError says what is missing."""
    path = Path(name)
    if name.endswith(".json") or path.is_dir():
        return read_config(path / "config.json" if path.is_dir() else path)
    plain = name.rsplit("/", 1)[-1].lower()
    for ending in ("-fp8", "-instruct", "-chat", "-it", "-hf"):
        plain = plain.removesuffix(ending)
    plain = plain.removeprefix("meta-")
    plain = _ALIASES.get(plain, plain)
    if plain not in MODELS:
        raise ConfigError("--model", name, "a config.json, a directory with one, or one of " + ", ".join(MODELS))
    return MODELS[plain]


def read_config(path: Path) -> ModelShape:
    """The shape from a Hugging Face configuration file. ModelError names the file and what it lacks."""
    config = read_json(path, mend="; give a config.json or a known name")
    if not isinstance(config, dict):
        raise ModelError(f"{path}: holds {type(config).__name__}, and a model's config is an object")
    return shape_of(config, str(path))


def shape_of(config: Mapping[str, Any], where: str = "config") -> ModelShape:
    """The shape from the fields of a configuration. ModelError lists every field that is missing or makes no sense."""
    text = config.get("text_config")
    config = text if isinstance(text, dict) else config
    missing: list[str] = []

    def number(*names: str, default: int | None = None, least: int = 1) -> int:
        for name in names:
            value = config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ModelError(f"{where}: {name} is {value!r}; it must be a whole number of at least {least}")
            return value
        if default is None:
            missing.append(" or ".join(names))
            return 1
        return default

    layers = number("num_hidden_layers", "n_layer")
    hidden = number("hidden_size", "n_embd", "d_model")
    heads = number("num_attention_heads", "n_head")
    experts = number("num_local_experts", "num_experts", "n_routed_experts", default=0, least=0)
    wide = number("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden if "n_embd" in config else None)
    moe_ffn = number("moe_intermediate_size", default=wide) if experts else wide
    dense_layers = number("first_k_dense_replace", default=0, least=0) if experts else 0
    latent = number("kv_lora_rank", default=0, least=0)
    windows = config.get("layer_types")
    vocabulary = number("vocab_size")
    context = number("max_position_embeddings", "n_positions", default=2048)
    active = number("num_experts_per_tok", "experts_per_token", "moe_top_k", default=None) if experts else 0
    if missing:
        raise ModelError(f"{where}: a model's shape needs " + ", ".join(missing) + ", which the file does not have")
    if config.get("head_dim") is None and hidden % heads:
        raise ModelError(f"{where}: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    shape = ModelShape(
        name=str(config.get("_name_or_path") or config.get("model_type") or where),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", "num_kv_heads", default=heads),
        head_size=number("head_dim", default=hidden // heads),
        ffn=moe_ffn,
        vocabulary=vocabulary,
        context=context,
        experts=experts,
        active_experts=active,
        shared_ffn=number("shared_expert_intermediate_size", default=0, least=0)
        or number("n_shared_experts", default=0, least=0) * moe_ffn,
        dense_layers=dense_layers,
        dense_ffn=wide if dense_layers else 0,
        tied=bool(config.get("tie_word_embeddings", False)),
        gated=config.get("model_type") not in ("gpt2", "opt", "gpt_neox", "bloom", "falcon", "phi"),
        kv_latent=latent + number("qk_rope_head_dim", default=0, least=0) if latent else 0,
    )
    if isinstance(windows, list) and config.get("sliding_window"):
        count = sum(kind == "sliding_attention" for kind in windows)
        shape = replace(shape, window=int(config["sliding_window"]), window_layers=count)
    return shape
