"""Which attention serves a model on a device."""

from __future__ import annotations

import torch

from paceline.errors import ConfigError
from paceline.exec.attention.interface import Attention, LayerShape
from paceline.exec.attention.reference import ReferenceAttention
from paceline.exec.attention.varlen import VarlenAttention, varlen_unusable


def choose_attention(
    name: str, dtype: torch.dtype, device: torch.device, layers: list[LayerShape], block_size: int
) -> tuple[Attention, str]:
    """The attention `name` stands for, without its K/V yet, and a line that says which and why.

    Raises ConfigError when an attention asked for by name cannot serve these layers.
    """
    if name == "reference":
        return ReferenceAttention(dtype, device), "reference"
    reason = varlen_unusable(dtype, device, layers, block_size)
    if reason is None:
        return VarlenAttention(dtype, device), "torch varlen_attn"
    if name == "varlen":
        raise ConfigError("--attention", name, f"reference here: {reason}")
    if device.type == "cpu":
        return ReferenceAttention(dtype, device), "reference"
    return ReferenceAttention(dtype, device), f"reference ({reason})"
