"""Which attention serves a model on a device."""

from __future__ import annotations

import torch

from paceline.errors import ConfigError
from paceline.exec.attention.cpu import CpuAttention, cpu_unusable
from paceline.exec.attention.interface import Attention, LayerShape
from paceline.exec.attention.reference import ReferenceAttention
from paceline.exec.attention.varlen import VarlenAttention, varlen_unusable
from paceline.exec.native import Kernels


def choose_attention(
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    layers: list[LayerShape],
    block_size: int,
    kernels: Kernels | None = None,
    kv_cache_dtype: str = "auto",
) -> tuple[Attention, str]:
    """The attention `name` stands for, without its K/V yet, and a line that says which and why.

    Raises ConfigError when an attention asked for by name cannot serve these layers, or nothing here can keep K/V in
    `kv_cache_dtype`.
    """
    if kv_cache_dtype != "auto":
        return _in_8_bits(name, dtype, device, layers, block_size, kernels, kv_cache_dtype)
    if name == "reference":
        return ReferenceAttention(dtype, device), "reference"
    if name == "cpu" or (name == "auto" and device.type == "cpu"):
        reason = "no native kernels are in use" if kernels is None else cpu_unusable(layers, block_size)
        if kernels is not None and reason is None:
            return CpuAttention(kernels, dtype), "native"
        if name == "cpu":
            raise ConfigError("--attention", name, f"reference here: {reason}")
        return ReferenceAttention(dtype, device), f"reference ({reason})"
    reason = varlen_unusable(dtype, device, layers, block_size)
    if reason is None:
        return VarlenAttention(dtype, device), "torch varlen_attn"
    if name == "varlen":
        raise ConfigError("--attention", name, f"reference here: {reason}")
    return ReferenceAttention(dtype, device), f"reference ({reason})"


def _in_8_bits(
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    layers: list[LayerShape],
    block_size: int,
    kernels: Kernels | None,
    kv_cache_dtype: str,
) -> tuple[Attention, str]:
    reason: str | None = "--attention is " + name
    if name in ("auto", "cpu"):
        reason = "no native kernels are in use" if kernels is None else cpu_unusable(layers, block_size)
    if kernels is None or reason is not None:
        raise ConfigError("--kv-cache-dtype", kv_cache_dtype, f"auto here: {reason}")
    return CpuAttention(kernels, dtype, torch.int8), "native, K/V in int8"
