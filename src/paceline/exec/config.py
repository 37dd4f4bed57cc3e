"""Settings of the executor, with their defaults, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError, flag_of

DEFAULT_MODEL = "smollm2-135m"
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
ATTENTIONS = ("auto", "reference", "varlen", "cpu")
KERNELS = ("auto", "avx512_bf16", "avx512", "avx2", "generic", "off")
QUANTIZATIONS = ("auto", "keep", "none", "int8", "int4")
KV_CACHE_DTYPES = ("auto", "int8")
BACKENDS = ("auto", "native", "transformers")


@dataclass(frozen=True)
class ExecutorConfig:
    """What to load and how much memory to give it. Names as vLLM's flags where the meaning is the same.

    `dtype` auto: bfloat16 where the device computes in it (CUDA, or a CPU with AVX-512 BF16 or AMX), else float16 on
    CUDA and float32 on a CPU; bfloat16 over weights that stay quantised. `device` auto: CUDA when there is one.

    K/V memory is, in this order: `num_blocks`; `kv_cache_memory` bytes; a share `gpu_memory_utilization`.
    On CUDA the share (default 0.9) is of the device's memory and includes the weights. On a CPU the share (default
    0.5) is of what is available once the weights are loaded, and at most 4 GiB.

    Raises ConfigError naming the flag, its value and the allowed range.
    """

    model: str = DEFAULT_MODEL
    dtype: str = "auto"
    device: str = "auto"
    quantization: str = "auto"  # of the weights, on the CPU; see docs/cpu.md
    kv_cache_dtype: str = "auto"  # auto: `dtype`; int8, with a scale by token and head: on the CPU
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None  # None: what the model was made for, or less where the K/V memory is smaller
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float | None = None
    num_blocks: int | None = None
    swap_space: int | None = None  # bytes of host memory for blocks that leave the device; None: none
    num_host_blocks: int | None = None  # goes before `swap_space`
    disk_kv: str | None = None  # directory for blocks that leave the host, and for those of earlier runs
    disk_kv_size: int | None = None  # bytes there
    threads: int | None = None  # None: the physical cores this process may use
    attention: str = "auto"
    kernels: str = "auto"  # native kernels for the CPU: the best this machine can run, one by name, or off
    backend: str = "auto"  # native: Paceline's own decoder; transformers: any other architecture

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model.strip():
            raise ConfigError("--model", self.model, "a directory, a .gguf file, a hub id or " + DEFAULT_MODEL)
        self._one_of("dtype", DTYPES)
        self._one_of("device", DEVICES)
        self._one_of("quantization", QUANTIZATIONS)
        self._one_of("kv_cache_dtype", KV_CACHE_DTYPES)
        self._one_of("attention", ATTENTIONS)
        self._one_of("kernels", KERNELS)
        self._one_of("backend", BACKENDS)
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            self._whole(name, required=True)
        for name in ("max_model_len", "kv_cache_memory", "num_blocks", "num_host_blocks", "disk_kv_size", "threads"):
            self._whole(name, required=False)
        if self.swap_space is not None and (not isinstance(self.swap_space, int) or self.swap_space < 0):
            raise ConfigError("--swap-space", self.swap_space, "a size such as 4GiB; 0: no host tier")
        if self.disk_kv_size is not None and self.disk_kv is None:
            raise ConfigError("--disk-kv-size", self.disk_kv_size, "left out without --disk-kv DIRECTORY")
        share = self.gpu_memory_utilization
        if share is not None and not (_is_number(share) and 0.0 < share <= 1.0):
            raise ConfigError("--gpu-memory-utilization", share, "a share above 0 and at most 1")

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise ConfigError(flag_of(name), getattr(self, name), "one of " + ", ".join(allowed))

    def _whole(self, name: str, *, required: bool) -> None:
        value = getattr(self, name)
        if value is None and not required:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(flag_of(name), value, "a whole number of at least 1")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
