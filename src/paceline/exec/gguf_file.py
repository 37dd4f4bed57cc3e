"""GGUF files: the header (metadata and tensor list), and tensors dequantised on demand. Without torch.

The header is read here rather than by `gguf.GGUFReader`, which takes seconds over a vocabulary of 50,000 tokens;
number formats and their dequantisation are the `gguf` package's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class TensorInfo(NamedTuple):
    """Where a tensor lies. `shape` is in torch's order (outermost first)."""

    shape: tuple[int, ...]
    kind: int  # ggml type
    offset: int  # bytes from the start of the file
    size: int  # bytes


@dataclass(frozen=True)
class GGUFFile:
    """The header of a .gguf file. `metadata` holds every key, arrays as lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """Metadata of the file's own architecture: `get("block_count")` reads e.g. "llama.block_count"."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, mapped, not read; the pages are given back with the array."""
        info = self.tensors[name]
        return np.memmap(self.path, np.uint8, "r", info.offset, (info.size,))

    def read(self, name: str) -> npt.NDArray[Any]:
        """A tensor as float32 (or as float16 where the file says so). ModelError for formats gguf cannot decode."""
        from gguf import GGMLQuantizationType, dequantize

        info = self.tensors[name]
        kind = GGMLQuantizationType(info.kind)
        raw = self.raw(name)
        plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}.get(kind)
        if plain is not None:
            copied: npt.NDArray[Any] = np.array(raw.view(plain).reshape(info.shape))
            return copied
        try:
            numbers: npt.NDArray[Any] = dequantize(raw.reshape(*info.shape[:-1], -1), kind)
            return numbers
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: the tensor {name} is stored as {kind.name}, which cannot be decoded; "
                "use a file quantised as Q4_0, Q4_K_M, Q8_0 or the like"
            ) from error


def read_gguf(path: Path) -> GGUFFile:
    """Read the header. ModelError when the file is no GGUF, truncated or corrupt."""
    try:
        data = memoryview(np.memmap(path, np.uint8, "r"))  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); give a .gguf file") from error
    if bytes(data[:4]) != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file (it does not begin with 'GGUF'); download it again")
    try:
        return _parse(path, data)
    except (struct.error, ValueError, KeyError, OverflowError, MemoryError, RecursionError) as error:
        raise ModelError(f"{path}: corrupt or truncated GGUF header ({error}); download it again") from error


def _parse(path: Path, data: memoryview) -> GGUFFile:
    cursor = _Cursor(data, 4)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not supported; use a little-endian version 2 or 3 file")
    tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    places = []
    for _ in range(tensor_count):
        name = cursor.string()
        shape = tuple(cursor.scalar("Q") for _ in range(cursor.scalar("I")))[::-1]
        places.append((name, shape, cursor.scalar("I"), cursor.scalar("Q")))
    alignment = int(metadata.get("general.alignment", 32))
    begin = -(-cursor.at // alignment) * alignment
    tensors = {name: _locate(path, name, shape, kind, begin + at) for name, shape, kind, at in places}
    for name, info in tensors.items():
        if info.offset + info.size > len(data):
            raise ModelError(
                f"{path}: truncated, {len(data)} bytes where the tensor {name} ends at {info.offset + info.size}; "
                "download it again"
            )
    return GGUFFile(path, metadata, tensors)


def _locate(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"{path}: the tensor {name} has the unknown number format {kind}; a newer gguf package may read it"
        ) from error
    elements = 1
    for length in shape:
        elements *= length
    if elements % block:
        raise ValueError(f"{name} holds {elements} numbers, no multiple of its block of {block}")
    return TensorInfo(shape, kind, offset, elements // block * size)


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at

    def scalar(self, code: str) -> Any:
        layout = "<" + code
        value = struct.unpack_from(layout, self.data, self.at)[0]
        self.at += struct.calcsize(layout)
        return value

    def string(self) -> str:
        size = struct.unpack_from("<Q", self.data, self.at)[0]
        begin = self.at + 8
        self.at = begin + size
        if self.at > len(self.data):
            raise ValueError("a text runs past the end of the file")
        return str(self.data[begin : self.at], "utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS:
            layout = f"<{count}{_SCALARS[kind]}"
            if self.at + struct.calcsize(layout) > len(self.data):
                raise ValueError("an array runs past the end of the file")
            values = list(struct.unpack_from(layout, self.data, self.at))
            self.at += struct.calcsize(layout)
            return values
        return [self.value(kind) for _ in range(count)]


_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def gguf_config(file: GGUFFile) -> dict[str, Any]:
    """A Hugging Face config of the file; `model_type` alone says little for architectures the decoder does not know."""
    get = file.get
    arch = file.architecture
    config: dict[str, Any] = {
        "model_type": _ARCHITECTURES.get(arch, arch),
        "hidden_size": get("embedding_length"),
        "num_hidden_layers": get("block_count"),
        "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": same(get("attention.head_count_kv")),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": get("context_length"),
        "vocab_size": get("vocab_size") or len(file.metadata.get("tokenizer.ggml.tokens", ())),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_theta": get("rope.freq_base"),
        "rope_parameters": _rope(file),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
    }
    if "token_embd.weight" in file.tensors:
        config["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    size = get("attention.key_length") or get("rope.dimension_count")
    if size is not None:
        config["head_dim"] = size
    if get("expert_count"):
        config["model_type"] += "_moe"
    if arch == "llama" and get("attention.sliding_window"):
        config["model_type"] = "mistral"
        config["sliding_window"] = get("attention.sliding_window")
    return {key: value for key, value in config.items() if value is not None}


def same(value: Any) -> Any:
    """The one value of a list by layer whose entries agree; anything else unchanged."""
    return value[0] if isinstance(value, list) and len(set(value)) == 1 else value


def _rope(file: GGUFFile) -> dict[str, Any]:
    if "rope_freqs.weight" in file.tensors:
        return {"rope_type": "factors", "factors": file.read("rope_freqs.weight").tolist()}
    kind = file.get("rope.scaling.type") or "none"
    if kind == "none":
        return {}
    return {
        "rope_type": kind,
        "factor": file.get("rope.scaling.factor"),
        "original_max_position_embeddings": file.get("rope.scaling.original_context_length"),
        "attention_factor": file.get("rope.scaling.attn_factor"),
    }
