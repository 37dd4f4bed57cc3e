"""From settings to a model in memory: the native decoder where it knows the architecture, else transformers."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.errors import ConfigError, ModelError
from paceline.exec.attention.reference import ReferenceAttention
from paceline.exec.config import ExecutorConfig
from paceline.exec.decoder_config import DecoderConfig, NotNative, decoder_config, with_biases
from paceline.exec.gguf_file import read_gguf
from paceline.exec.gguf_weights import GGUFWeights
from paceline.exec.host import available_memory, fastest_dtype
from paceline.exec.llama import NativeDecoder
from paceline.exec.model import Model
from paceline.exec.native import choose_kernels
from paceline.exec.source import ModelSource, resolve
from paceline.exec.stored import QuantisedWeights
from paceline.exec.weights import Weights, directory_weights

LARGE = 2**30  # bytes of the weights of a model in bfloat16 from which on a quantised file stays quantised

__all__ = ["ModelSource", "choose_device", "choose_dtype", "load_model", "resolve"]


def choose_device(config: ExecutorConfig) -> torch.device:
    """The device `--device` stands for. ConfigError when CUDA is asked for and is not there."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("--device", config.device, "cpu or auto here: torch finds no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


def choose_dtype(config: ExecutorConfig, device: torch.device, *, quantised: bool = False) -> torch.dtype:
    """The number format `--dtype` stands for. `quantised`: the weights stay quantised."""
    if config.dtype == "auto":
        return torch.bfloat16 if quantised else fastest_dtype(device)
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def load_model(config: ExecutorConfig, source: ModelSource | None = None) -> Model:
    """Load the model `config` names (or `source`, when it is resolved already).

    Raises ModelError, on one line with the file and the mend, for files missing or corrupt, architectures and features
    not supported, and weights that do not fit into memory; ConfigError for settings that cannot hold here.
    """
    source = source or resolve(config.model)
    _refuse_quantised(source)
    device = choose_device(config)
    if config.backend != "transformers":
        try:
            shape = decoder_config(source.config, str(source.path))
            return _native(config, source, shape, device)
        except NotNative as reason:
            if config.backend == "native":
                raise ModelError(
                    f"{source.path}: the native decoder does not know {reason}; use --backend auto"
                ) from reason
    if config.quantization not in ("auto", "none"):
        raise ConfigError("--quantization", config.quantization, "auto or none with models served by transformers")
    return _transformers(source, choose_dtype(config, device), device)


def _stays_quantised(config: ExecutorConfig, shape: DecoderConfig) -> bool:
    """Whether weights that are quantised in the file are so in memory: where that is exact, or asked for, or the model
    is large. Small models answer visibly worse once activations are rounded too, and take little memory widened."""
    if config.quantization != "auto":
        return config.quantization == "keep"
    return config.dtype in ("float32", "float16") or 2 * shape.parameters() > LARGE


def _native(config: ExecutorConfig, source: ModelSource, shape: DecoderConfig, device: torch.device) -> Model:
    kernels, reason = choose_kernels(config.kernels, device)
    weights: Weights
    keep = False  # the weights quantised
    size = 0
    if source.kind == "gguf":
        weights = GGUFWeights(read_gguf(source.path))
        shape = with_biases(shape, weights.names())
        keep = kernels is not None and weights.quantised and _stays_quantised(config, shape)
        size = _file_bytes(source.path)
    else:
        weights = directory_weights(source.path)
    if config.quantization == "keep" and not keep:
        why = f"without native kernels, which are {reason}" if kernels is None else "with a file that is not quantised"
        raise ConfigError("--quantization", "keep", f"auto or none {why}")
    if config.quantization in ("int8", "int4"):
        if kernels is None:
            raise ConfigError(
                "--quantization", config.quantization, f"auto or none without native kernels, which are {reason}"
            )
        if isinstance(weights, GGUFWeights) and weights.quantised:
            raise ConfigError(
                "--quantization", config.quantization, "auto, keep or none: this file is quantised already"
            )
        weights = QuantisedWeights(weights, config.quantization, kernels)
        keep, size = True, shape.parameters() * 9 // 8
    dtype = choose_dtype(config, device, quantised=keep)
    _check_memory(source.path, size if keep else shape.parameters() * dtype.itemsize, device)
    return NativeDecoder(shape, weights, dtype, device, kernels, keep_quantised=keep)


def _transformers(source: ModelSource, dtype: torch.dtype, device: torch.device) -> Model:
    if source.kind == "gguf":
        raise ModelError(
            f"{source.path}: GGUF files of architecture {source.config['model_type']!r} are not supported; "
            "use the model's safetensors directory"
        )
    from paceline.exec import transformers_model  # seconds to import, and most models do not need it

    _check_memory(source.path, _file_bytes(source.path), device)
    return transformers_model.load(
        str(source.path), dtype, device, new_attention=lambda: ReferenceAttention(dtype, device)
    )


def _refuse_quantised(source: ModelSource) -> None:
    method = source.config.get("quantization_config")
    if method:
        name = method.get("quant_method") if isinstance(method, dict) else method
        raise ModelError(
            f"{source.path}: its weights are quantised ({name}), which is not supported; "
            "use the unquantised checkpoint or a .gguf file"
        )


def _file_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    sizes = {pattern: sum(file.stat().st_size for file in path.glob(pattern)) for pattern in ("*.safetensors", "*.bin")}
    return sizes["*.safetensors"] or sizes["*.bin"]


def _check_memory(path: Path, needed: int, device: torch.device) -> None:
    there = available_memory(device)
    if needed > there:
        raise ModelError(
            f"{path}: its weights need {needed / 2**30:.1f} GiB and {there / 2**30:.1f} GiB of memory are available on "
            f"{device.type}; free some, choose a smaller --dtype or a smaller model"
        )
