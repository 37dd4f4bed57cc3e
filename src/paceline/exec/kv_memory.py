"""How many K/V blocks fit, and what that means to a user."""

from __future__ import annotations

from typing import NamedTuple

import torch

from paceline.errors import ConfigError, ModelError
from paceline.exec.attention import LayerShape
from paceline.exec.attention.cpu import SCALE_BYTES
from paceline.exec.config import ExecutorConfig
from paceline.exec.host import available_memory, total_memory

_CUDA_SHARE = 0.9
_CPU_SHARE = 0.5
_CPU_LIMIT = 4 << 30  # leaves a desktop usable; --kv-cache-memory asks for more


class KVSize(NamedTuple):
    """The K/V cache a configuration leads to."""

    num_blocks: int
    block_size: int
    bytes_per_token: int
    max_model_len: int

    @property
    def tokens(self) -> int:
        return self.num_blocks * self.block_size

    def sentence(self) -> str:
        """E.g. "room for 41,408 tokens: 40 sequences of 1,024"; the largest length of 1,024 and below that fits."""
        length = min(1024, self.max_model_len, self.tokens)
        count = self.num_blocks // -(-length // self.block_size)
        noun = "sequence" if count == 1 else "sequences"
        return f"room for {self.tokens:,} tokens: {count:,} {noun} of {length:,}"


def bytes_per_token(layers: list[LayerShape], dtype: torch.dtype) -> int:
    """Bytes of K/V one token takes, all layers together. `dtype` of K/V; int8 with its scales."""
    scales = 2 * SCALE_BYTES if dtype == torch.int8 else 0
    return sum(shape.kv_heads * ((shape.key_size + shape.value_size) * dtype.itemsize + scales) for shape in layers)


def kv_bytes(config: ExecutorConfig, device: torch.device, working: int) -> int:
    """Bytes for K/V after the weights are loaded, `working` bytes set aside for a step's activations."""
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory
    available = available_memory(device)
    share = config.gpu_memory_utilization
    if device.type == "cuda":
        total = total_memory(device)
        used = total - available
        return int(total * (_CUDA_SHARE if share is None else share)) - used - working
    return min(int(available * (_CPU_SHARE if share is None else share)), _CPU_LIMIT)


def size_kv(
    config: ExecutorConfig,
    layers: list[LayerShape],
    dtype: torch.dtype,
    device: torch.device,
    max_positions: int,
    working: int = 0,
) -> KVSize:
    """Blocks and the longest sequence, for a model whose weights are in memory. `dtype`: of K/V.

    Raises ModelError when not one block fits, ConfigError naming the flag when what was asked for cannot hold.
    """
    if config.max_model_len is not None and config.max_model_len > max_positions:
        raise ConfigError("--max-model-len", config.max_model_len, f"at most {max_positions}, as the model was made")
    token = bytes_per_token(layers, dtype)
    length = config.max_model_len or max_positions
    if config.num_blocks is not None:
        if config.max_model_len is None:
            length = min(length, config.num_blocks * config.block_size)
        return KVSize(config.num_blocks, config.block_size, token, length)
    memory = kv_bytes(config, device, working)
    num_blocks = memory // (token * config.block_size)
    if num_blocks < 1:
        raise ModelError(
            f"{config.model}: {max(0, memory) / 2**20:.1f} MiB are left for K/V and one block of {config.block_size} "
            f"tokens needs {token * config.block_size / 2**20:.1f} MiB; free memory, or raise --kv-cache-memory or "
            "--gpu-memory-utilization"
        )
    _check_allocatable(config, num_blocks * config.block_size * token, device)
    room = num_blocks * config.block_size
    if room < length:
        if config.max_model_len is not None:
            raise ConfigError(
                "--max-model-len",
                config.max_model_len,
                f"at most {room} with this K/V memory; lower it or raise --kv-cache-memory",
            )
        length = room
    return KVSize(num_blocks, config.block_size, token, length)


def _check_allocatable(config: ExecutorConfig, needed: int, device: torch.device) -> None:
    available = available_memory(device)
    if needed > available:
        raise ConfigError(
            "--kv-cache-memory" if config.kv_cache_memory is not None else "--gpu-memory-utilization",
            config.kv_cache_memory if config.kv_cache_memory is not None else config.gpu_memory_utilization,
            f"less: {available / 2**30:.2f} GiB are available for K/V once the weights are loaded",
        )
