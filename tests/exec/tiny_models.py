"""Small random-weight models of many architectures, made in memory."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

WINDOW = 7  # tokens: shorter than the texts of the tests

_ANY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,  # large enough that attention tells in the logits
}
_WHERE_KNOWN = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "rotary_dim": 8,
    "sliding_window": WINDOW,
}
_LATENT = {  # multi-head latent attention: keys of 24, values of 12
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"]}

SERVED: dict[str, dict[str, Any]] = {
    "afmoe": _MIXED,
    "apertus": {},
    "arcee": {},
    "axk1": _LATENT,
    "beam": {},
    "biogpt": {},
    "bitnet": {},
    "codegen": {},
    "cohere": {"logit_scale": 0.25},
    "cohere2": _MIXED,
    "cohere2_moe": {},
    "ctrl": {"n_positions": 256, "dff": 96},
    "cwm": _MIXED,
    "dbrx": {
        **dict.fromkeys(["hidden_size", "num_hidden_layers", "num_attention_heads"]),
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "max_seq_len": 256,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {**_LATENT, "num_experts_per_tok": 2},
    "deepseek_v3": _LATENT,
    "diffllama": {},
    "dots1": {**_MIXED, "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone4": _MIXED,
    "exaone_moe": {},
    "flex_olmo": {},
    "gemma": {},
    "gemma2": {**_MIXED, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": _MIXED,
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 128,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "gemma4_text": {
        **_MIXED,
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 128,
    },
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": _LATENT,
    "gpt2": {"n_positions": 256},
    "gpt_bigcode": {"n_positions": 256},
    "gpt_neox": {},
    "gptj": {},
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "granitemoe": {},
    "granitemoeshared": {},
    "helium": {},
    "hrm_text": {},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hy_v3": {},
    "hyperclovax": {},
    "jais2": {},
    "jetmoe": {},
    "kolibri1": {},
    "laguna": {},
    "llama": {},
    "longcat_flash": _LATENT,
    "mellum": {},
    "minicpm3": _LATENT,
    "minimax_m2": {},
    "ministral": {**_MIXED, "head_dim": 16},
    "ministral3": {},
    "mistral": {},
    "mixtral": {},
    "modernbert-decoder": {},
    "nanochat": {},
    "nemotron": {"num_key_value_heads": 2},
    "olmo": {},
    "olmo2": {},
    "olmo3": _MIXED,
    "olmoe": {},
    "opt": {"word_embed_proj_dim": 64, "ffn_dim": 96},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": {},
    "qwen2": {**_MIXED, "use_sliding_window": True, "sliding_window": WINDOW},
    "qwen2_moe": {},
    "qwen3": {**_MIXED, "use_sliding_window": True, "sliding_window": WINDOW},
    "qwen3_moe": {},
    "seed_oss": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "solar_open": {},
    "stablelm": {"use_qkv_bias": True},
    "starcoder2": {},
    "vaultgemma": _MIXED,
    "youtu": _LATENT,
}
"""Model type -> settings over the common ones, chosen so that what sets the architecture apart is at work."""

SERVED_SINCE = {"codegen": "5.24", "gptj": "5.24"}
"""Releases of transformers in which an architecture came to use its attention interface."""


def served_here(model_type: str) -> bool:
    """Whether the transformers installed has the architecture, in a form that is served."""
    since = SERVED_SINCE.get(model_type, "0")
    return model_type in CONFIG_MAPPING and Version(transformers.__version__) >= Version(since)


def tiny_config(model_type: str, **settings: Any) -> PreTrainedConfig:
    """A configuration of some thousand weights. `settings` go over the common small sizes; None takes one away."""
    settings = {**SERVED.get(model_type, {}), **settings}
    defaults = AutoConfig.for_model(model_type)
    known = {
        name: value
        for name, value in _WHERE_KNOWN.items()
        if name not in settings and getattr(defaults, name, None) is not None
    }
    chosen = {**_ANY, **known, **settings}
    return type(defaults)(**{name: value for name, value in chosen.items() if value is not None})


def tiny_model(model_type: str, **settings: Any) -> PreTrainedModel:
    """A model with random weights, the same ones each time."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        tiny_config(model_type, **settings),
        attn_implementation="eager",  # the one that heeds soft caps in every version
    )
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start at constants that hide mistakes
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()
