"""GGUF files: the default model as shipped, and small files of each architecture."""

from __future__ import annotations

import functools
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from paceline.errors import ModelError
from paceline.exec.config import DEFAULT_MODEL, ExecutorConfig
from paceline.exec.gguf_file import read_gguf
from paceline.exec.loader import load_model, resolve

from .plans import PlanBatch
from .random_models import CONFIGS, SMALL, random_model
from .test_native_decoder import paged_logits, texts, whole_logits

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model, path: Path, architecture: str, quantisation: gguf.GGMLQuantizationType) -> Path:
    """Write a transformers model as a converter would, llama's query and key rows in their other order."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(SMALL["num_hidden_layers"])
    writer.add_context_length(SMALL["max_position_embeddings"])
    writer.add_embedding_length(SMALL["hidden_size"])
    writer.add_feed_forward_length(SMALL["intermediate_size"])
    writer.add_head_count(model.config.num_attention_heads)
    writer.add_head_count_kv(model.config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    head = getattr(model.config, "head_dim", None) or SMALL["hidden_size"] // SMALL["num_attention_heads"]
    writer.add_key_length(head)
    writer.add_token_list([f"t{i}" for i in range(SMALL["vocab_size"])])
    writer.add_eos_token_id(2)
    for name, tensor in model.state_dict().items():
        if name.startswith("lm_head") and model.config.tie_word_embeddings:
            continue
        stem, part = name.rsplit(".", 1)
        rows = tensor.clone()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = rows.shape[0] // head
            rows = rows.view(heads, 2, head // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
        if stem.startswith("model.layers."):
            _, _, layer, rest = stem.split(".", 3)
            theirs = f"blk.{layer}.{_NAMES[rest]}.{part}"
        else:
            theirs = f"{_NAMES[stem]}.{part}"
        data = rows.numpy()
        if data.ndim > 1 and quantisation != gguf.GGMLQuantizationType.F32 and data.shape[1] % 32 == 0:
            writer.add_tensor(theirs, gguf.quantize(data, quantisation), raw_dtype=quantisation)
        else:
            writer.add_tensor(theirs, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("llama", "llama"),
        ("llama", "llama-one-kv-head-tied"),
        ("llama", "llama-biases"),
        ("llama", "llama-wide-heads"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
    ],
)
def test_each_architecture_gives_transformers_logits(tmp_path, architecture, config):
    theirs = random_model(CONFIGS[config]())
    path = write_gguf(theirs, tmp_path / "small.gguf", architecture, gguf.GGMLQuantizationType.F32)
    ours = load_model(ExecutorConfig(str(path), dtype="float32", device="cpu"))
    (prompt,) = texts(30)
    batch = PlanBatch([prompt], num_blocks=16, block_size=4, max_model_len=64)
    found = paged_logits(ours, [{0: 21}, {0: 9}], batch)[0]
    torch.testing.assert_close(found, whole_logits(theirs, prompt), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_number_formats_come_out_near_the_original(tmp_path, kind):
    theirs = random_model(CONFIGS["llama"]())
    path = write_gguf(theirs, tmp_path / "small.gguf", "llama", gguf.GGMLQuantizationType[kind])
    ours = load_model(ExecutorConfig(str(path), dtype="float32", device="cpu"))
    (prompt,) = texts(30)
    batch = PlanBatch([prompt], num_blocks=16, block_size=4, max_model_len=64)
    found, expected = paged_logits(ours, [{0: 30}], batch)[0], whole_logits(theirs, prompt)
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.slow
def test_the_default_model_equals_transformers_reading_the_same_file(monkeypatch):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    for slow in ("GGUFReader", "get_tensor_name_map"):  # which transformers asks for the same again and again
        monkeypatch.setattr(gguf, slow, functools.cache(getattr(gguf, slow)))
    source = resolve(DEFAULT_MODEL)
    theirs = LlamaForCausalLM(LlamaConfig(**load_gguf_checkpoint(source.path)["config"])).eval()
    theirs.load_state_dict(
        load_gguf_checkpoint(source.path, return_tensors=True, model_to_load=theirs)["tensors"], strict=False
    )
    theirs.tie_weights()
    ours = load_model(ExecutorConfig(dtype="float32", device="cpu"), source)
    prompt = np.random.default_rng(3).integers(20, 49_000, 48).tolist()
    batch = PlanBatch([prompt], num_blocks=16, block_size=16, max_model_len=256)
    found = paged_logits(ours, [{0: 30}, {0: 17}, {0: 1}], batch)[0]
    torch.testing.assert_close(found, whole_logits(theirs, prompt), atol=2e-3, rtol=1e-4)


def test_metadata_of_the_default_model():
    source = resolve(DEFAULT_MODEL)
    file = read_gguf(source.path)
    assert file.architecture == "llama"
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49_152
    assert file.metadata["tokenizer.ggml.tokens"][2] == "<|im_end|>"
    assert source.config["eos_token_id"] == 2
    assert source.config["tie_word_embeddings"] is True
    assert source.config["max_position_embeddings"] == 8192


def test_a_file_cut_anywhere_is_refused_by_name(tmp_path):
    theirs = random_model(CONFIGS["llama"]())
    whole = write_gguf(theirs, tmp_path / "whole.gguf", "llama", gguf.GGMLQuantizationType.F32).read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [0, 3, 4, 10, 24, 100, 700, len(whole) // 2, len(whole) - 200]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf.*(give a|download it again)") as caught:
            load_model(ExecutorConfig(str(path), device="cpu"))
        assert "\n" not in str(caught.value)


def test_damaged_bytes_in_the_header_raise_nothing_but_model_errors(tmp_path):
    theirs = random_model(CONFIGS["llama"]())
    whole = write_gguf(theirs, tmp_path / "whole.gguf", "llama", gguf.GGMLQuantizationType.F32).read_bytes()
    path = tmp_path / "damaged.gguf"
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for place in generator.integers(4, 3000, 3):
            data[place] = generator.integers(256)
        path.write_bytes(data)
        try:
            load_model(ExecutorConfig(str(path), device="cpu"))
        except ModelError as error:
            refused += 1
            assert "damaged.gguf" in str(error) and "\n" not in str(error)
    assert refused > 5
