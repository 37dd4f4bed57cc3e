"""Rotary frequencies of the scaling kinds the native decoder knows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.errors import ModelError

NATIVE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "factors")
FOREIGN_KINDS = ("longrope", "proportional", "axial")  # known to transformers only


@dataclass(frozen=True)
class Rope:
    """Rotary settings of a model. `parameters` holds what the kind needs, under the names of a Hugging Face config.

    kind `dynamic` (NTK) changes nothing up to the length the model was trained for, and the decoder serves no more.
    kind `factors` divides frequency i by `parameters["factors"][i]`, as GGUF files of Llama 3 ask.
    """

    head_size: int
    kind: str = "default"
    theta: float = 10_000.0
    parameters: dict[str, Any] = field(default_factory=dict)

    def frequencies(self) -> tuple[torch.Tensor, float]:
        """[head_size / 2] float32 radians per position, and the factor on cosine and sine."""
        exponents = torch.arange(0, self.head_size, 2, dtype=torch.int64).float() / self.head_size
        plain = 1.0 / self.theta**exponents
        if self.kind in ("default", "dynamic"):
            return plain, 1.0
        if self.kind == "linear":
            return plain / self._number("factor"), 1.0
        if self.kind == "factors":
            return plain / torch.as_tensor(self.parameters["factors"], dtype=torch.float32), 1.0
        if self.kind == "llama3":
            return self._llama3(plain), 1.0
        if self.kind == "yarn":
            return self._yarn(plain), self._yarn_scale()
        raise ModelError(f"rope scaling {self.kind!r} is not one of {', '.join(NATIVE_KINDS)}")

    def _number(self, name: str, default: float | None = None) -> float:
        value = self.parameters.get(name)
        if value is None:
            value = default
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ModelError(f"rope scaling {self.kind!r} needs the number {name!r} in the model's config")
        return float(value)

    def _llama3(self, plain: torch.Tensor) -> torch.Tensor:
        """Llama 3.1: keep short wavelengths, divide long ones by `factor`, blend between."""
        factor = self._number("factor")
        low, high = self._number("low_freq_factor"), self._number("high_freq_factor")
        rotations = self._number("original_max_position_embeddings") * plain / (2 * math.pi)
        blend = ((rotations - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - blend) * plain / factor + blend * plain

    def _yarn(self, plain: torch.Tensor) -> torch.Tensor:
        """YaRN (Peng et al. 2023): interpolate slow dimensions, keep fast ones, a linear ramp between."""
        trained = self._number("original_max_position_embeddings")
        size = self.head_size

        def dimension(rotations: float) -> float:
            return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))

        low = dimension(self._number("beta_fast", 32.0) or 32.0)
        high = dimension(self._number("beta_slow", 1.0) or 1.0)
        if self.parameters.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        if low == high:
            high += 0.001
        ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
        return plain / self._number("factor") * ramp + plain * (1 - ramp)

    def _yarn_scale(self) -> float:
        if self.parameters.get("attention_factor") is not None:
            return self._number("attention_factor")
        factor = self._number("factor")

        def grown(weight: float) -> float:
            return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

        mscale, everywhere = self.parameters.get("mscale"), self.parameters.get("mscale_all_dim")
        if mscale and everywhere:
            return grown(float(mscale)) / grown(float(everywhere))
        return grown(1.0)


def rope_of(config: dict[str, Any], head_size: int, max_positions: int) -> Rope:
    """Read the rotary settings of a Hugging Face config, old (`rope_scaling`) or new (`rope_parameters`)."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    parameters = {name: value for name, value in given.items() if value is not None}
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    original = config.get("original_max_position_embeddings")
    if original is not None:
        parameters["original_max_position_embeddings"] = original
    parameters.setdefault("original_max_position_embeddings", max_positions)
    if kind == "yarn":
        parameters.setdefault("factor", max_positions / parameters["original_max_position_embeddings"])
    return Rope(head_size, kind, theta, parameters)
