"""The small functions a decoder layer is made of, kept behind plain names so that native kernels can take their place.

All take and return tensors of the model's dtype; sums and roots are taken in float32 inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`hidden` [..., D] / rms over D, times `weight` [D] (Zhang and Sennrich 2019)."""
    return functional.rms_norm(hidden, (hidden.shape[-1],), weight, epsilon)


def rms_norm_heads(heads: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`heads` [T, H, D] each normed over D, times its own row of `weight` [H, D]."""
    return functional.rms_norm(heads, (heads.shape[-1],), None, epsilon) * weight


class Rotation(NamedTuple):
    """Rotary angles of a step's tokens; the first half of `sine` is negated, so that rotating needs no split."""

    cosine: torch.Tensor  # [T, 1, D]
    sine: torch.Tensor  # [T, 1, D]


def rotation(positions: torch.Tensor, frequencies: torch.Tensor, scale: float, dtype: torch.dtype) -> Rotation:
    """Angles of `positions` [T] at `frequencies` [D / 2] (float32), cos and sin multiplied by `scale`."""
    angles = positions.to(torch.float32)[:, None] * frequencies
    cosine, sine = angles.cos() * scale, angles.sin() * scale
    return Rotation(torch.cat((cosine, cosine), -1).to(dtype)[:, None], torch.cat((-sine, sine), -1).to(dtype)[:, None])


def rotate(heads: torch.Tensor, angles: Rotation) -> torch.Tensor:
    """Rotary position embedding of `heads` [T, H, D], pairing dimension i with i + D / 2 (Su et al. 2021)."""
    return torch.addcmul(heads * angles.cosine, heads.roll(heads.shape[-1] // 2, -1), angles.sine)


def _gelu_tanh(gate: torch.Tensor) -> torch.Tensor:
    return functional.gelu(gate, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": functional.relu,
}


def gated(gate_up: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`gate_up` [T, 2 * I], the gate first: activation(gate) * up, [T, I] (Shazeer 2020)."""
    gate, up = gate_up.chunk(2, -1)
    return activation(gate) * up
