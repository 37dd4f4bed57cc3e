"""Small models with random weights, saved as a user would find them on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500.0,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 100.0}

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "llama-one-kv-head-tied": lambda: LlamaConfig(**SMALL | {"num_key_value_heads": 1}, tie_word_embeddings=True),
    "llama-biases": lambda: LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": lambda: LlamaConfig(**SMALL, head_dim=16),
    "llama-gelu": lambda: LlamaConfig(**SMALL, hidden_act="gelu_pytorch_tanh"),
    "llama-linear-rope": lambda: LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 1000.0}
    ),
    "llama-dynamic-rope": lambda: LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "dynamic", "factor": 3.0, "rope_theta": 1000.0}
    ),
    "llama-llama3-rope": lambda: LlamaConfig(**SMALL, rope_parameters=dict(_LLAMA3)),
    "llama-yarn-rope": lambda: LlamaConfig(**SMALL, head_dim=16, rope_parameters=dict(_YARN)),
    "llama-yarn-rope-mscale": lambda: LlamaConfig(
        **SMALL, head_dim=16, rope_parameters=_YARN | {"mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 8.0}
    ),
    "mistral": lambda: MistralConfig(**SMALL, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**SMALL, sliding_window=9),
    "qwen2": lambda: Qwen2Config(**SMALL),
    "qwen2-window-layers": lambda: Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=7, max_window_layers=2),
    "qwen2-layer-types": lambda: Qwen2Config(
        **SMALL,
        use_sliding_window=True,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3": lambda: Qwen3Config(**SMALL, head_dim=16),
    "qwen3-biases-tied": lambda: Qwen3Config(**SMALL, head_dim=16, attention_bias=True, tie_word_embeddings=True),
}


def random_model(config: Any, seed: int = 0) -> Any:
    """A transformers model with weights large enough that its logits differ clearly, biases and norms included."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.ndim > 1 else 0.1
            weight.copy_(torch.randn_like(weight) * spread + (1.0 if "norm" in name else 0.0))
    return model


def save(model: Any, directory: Path, **options: Any) -> Path:
    model.save_pretrained(directory, **options)
    return directory
