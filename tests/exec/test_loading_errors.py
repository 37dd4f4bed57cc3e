"""What a user gets for a model that cannot be loaded: one line with the file and the mend."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.errors import ConfigError, ModelError
from paceline.exec import loader
from paceline.exec.config import ExecutorConfig
from paceline.exec.loader import load_model, resolve

from .random_models import CONFIGS, random_model, save


@pytest.fixture
def directory(tmp_path):
    return save(random_model(CONFIGS["llama"]()), tmp_path / "model")


def refusal(directory, **settings) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(ExecutorConfig(str(directory), dtype="float32", device="cpu", **settings))
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit_config(directory, **changes) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_truncated_safetensors(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors: corrupt or truncated" in refusal(directory)


@pytest.mark.parametrize("content", [b"", b"garbage", struct.pack("<Q", 2**60), struct.pack("<Q", 8) + b"not json"])
def test_garbage_safetensors(directory, content):
    (directory / "model.safetensors").write_bytes(content)
    message = refusal(directory)
    assert "model.safetensors: corrupt or truncated" in message and "download it again" in message


def test_garbage_pytorch_file(directory):
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"garbage")
    assert "pytorch_model.bin" in refusal(directory)


def test_pytorch_file_with_code_in_it_is_not_run(directory):
    import pickle

    class Bomb:
        def __reduce__(self):
            return (print, ("ran",))

    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    assert "not a plain weight file" in refusal(directory)


def test_a_missing_tensor_is_named(directory):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    message = refusal(directory)
    assert "model.layers.1.mlp.up_proj.weight is missing" in message and "model.safetensors" in message


def test_a_tensor_of_another_shape_is_named(directory):
    edit_config(directory, intermediate_size=64)
    message = refusal(directory)
    assert "gate_proj.weight has shape [48, 32]" in message and "[64, 32]" in message


def test_a_missing_shard_is_named(tmp_path):
    directory = save(random_model(CONFIGS["llama"]()), tmp_path / "model", max_shard_size="10KB")
    shard = sorted(directory.glob("*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(directory)


def test_a_broken_index(tmp_path):
    directory = save(random_model(CONFIGS["llama"]()), tmp_path / "model", max_shard_size="10KB")
    (directory / "model.safetensors.index.json").write_text("{")
    assert "model.safetensors.index.json" in refusal(directory)


def test_no_weights(directory):
    (directory / "model.safetensors").unlink()
    assert "no weights here" in refusal(directory)


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "not readable JSON"), ("[]", "model_type"), ("{}", "model_type")],
)
def test_broken_config(directory, content, says):
    (directory / "config.json").write_text(content)
    message = refusal(directory)
    assert says in message and "config.json" in message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": "32"}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"vocab_size": None}, "vocab_size"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "spiral"),
        ({"rope_parameters": {"rope_type": "linear"}}, "model: rope scaling 'linear' needs the number 'factor'"),
        ({"rope_parameters": 7}, "wrong type"),
        ({"rms_norm_eps": "tiny"}, "wrong type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ],
)
def test_a_config_that_makes_no_sense(directory, changes, says):
    edit_config(directory, **changes)
    assert says in refusal(directory)


def test_native_backend_refuses_what_it_does_not_know(directory):
    edit_config(directory, model_type="mamba", architectures=["MambaForCausalLM"])
    assert "'mamba'" in refusal(directory, backend="native")


def test_missing_paths(tmp_path):
    for name in (str(tmp_path / "nothing"), "./nothing", "nothing.gguf", "a b c", ""):
        with pytest.raises((ModelError, ConfigError), match="--model"):
            resolve(ExecutorConfig(name).model)


def test_a_directory_without_a_model(tmp_path):
    assert "no config.json here" in refusal(tmp_path)


def test_a_weight_file_in_place_of_its_directory(directory):
    assert "give --model the directory" in refusal(directory / "model.safetensors")


def test_weights_larger_than_memory(directory, monkeypatch):
    monkeypatch.setattr(loader, "available_memory", lambda device: 1000)
    message = refusal(directory)
    assert "GiB" in message and "smaller" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_cuda_where_there_is_none(directory):
    with pytest.raises(ConfigError, match="--device: 'cuda'"):
        load_model(ExecutorConfig(str(directory), device="cuda"))


@pytest.mark.parametrize(
    ("setting", "value", "flag"),
    [
        ("dtype", "float8", "--dtype"),
        ("device", "tpu", "--device"),
        ("block_size", 0, "--block-size"),
        ("max_model_len", -1, "--max-model-len"),
        ("kv_cache_memory", 1.5, "--kv-cache-memory"),
        ("gpu_memory_utilization", 1.2, "--gpu-memory-utilization"),
        ("threads", 0, "--threads"),
        ("max_num_seqs", True, "--max-num-seqs"),
        ("attention", "fast", "--attention"),
    ],
)
def test_bad_settings_name_the_flag(setting, value, flag):
    with pytest.raises(ConfigError, match=flag):
        ExecutorConfig(**{setting: value})
