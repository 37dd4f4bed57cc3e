"""Accelerators: what their data sheets say, dense rates only, and what an hour of one costs.

Vendors often headline rates with structured sparsity; the numbers here are without. Prices are round figures for
on-demand rental, there so that a first plan shows a cost: give your own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from paceline.errors import ConfigError


@dataclass(frozen=True)
class Hardware:
    """One device. Rates are peaks: TFLOP/s, GB/s (10^9). 0: the device has no such thing."""

    name: str
    bf16_tflops: float
    fp8_tflops: float
    memory_gb: float  # 10^9 bytes
    bandwidth_gbs: float
    link_gbs: float  # to its neighbours, both directions together
    pcie_gbs: float  # to the host, one direction
    watts: float
    price_per_hour: float
    source: str

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.type == "float" and not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ConfigError(f"hardware {self.name}, {spec.name}", value, "a finite number of at least 0")
        for name in ("bf16_tflops", "memory_gb", "bandwidth_gbs"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"hardware {self.name}, {name}", getattr(self, name), "above 0")

    def tflops(self, weight_bytes: float) -> float:
        """Peak for matrix products with weights of that many bytes an element; bf16's where there is nothing faster."""
        return self.fp8_tflops if weight_bytes <= 1 and self.fp8_tflops else self.bf16_tflops

    def at_price(self, per_hour: float) -> Hardware:
        return replace(self, price_per_hour=per_hour)


_ROWS = (
    Hardware("a10", 125, 0, 24, 600, 0, 32, 150, 0.75, "NVIDIA A10 data sheet"),
    Hardware("l4", 121, 242, 24, 300, 0, 32, 72, 0.7, "NVIDIA L4 data sheet"),
    Hardware("l40s", 362, 733, 48, 864, 0, 32, 350, 1.5, "NVIDIA L40S data sheet"),
    Hardware("a100-40", 312, 0, 40, 1555, 600, 32, 400, 1.6, "NVIDIA A100 data sheet, 40 GB SXM"),
    Hardware("a100-80", 312, 0, 80, 2039, 600, 32, 400, 2.0, "NVIDIA A100 data sheet, 80 GB SXM"),
    Hardware("h100", 989, 1979, 80, 3350, 900, 64, 700, 3.0, "NVIDIA H100 data sheet, SXM"),
    Hardware("h200", 989, 1979, 141, 4800, 900, 64, 700, 3.8, "NVIDIA H200 data sheet, SXM"),
    Hardware("b200", 2250, 4500, 180, 7700, 1800, 64, 1000, 5.5, "NVIDIA Blackwell data sheet, SXM"),
    Hardware("gb200", 2450, 4900, 186, 8000, 1800, 200, 1200, 6.5, "NVIDIA GB200 NVL72 data sheet, per GPU"),
    Hardware("mi300x", 1307, 2615, 192, 5300, 896, 64, 750, 3.0, "AMD MI300X data sheet"),
    Hardware("rtx4090", 165, 330, 25.2, 1008, 0, 32, 450, 0.4, "NVIDIA Ada white paper, fp32 accumulation"),
    Hardware("rtxpro6000", 503, 1007, 96, 1792, 0, 64, 600, 1.8, "NVIDIA RTX PRO 6000 Blackwell page"),
)

HARDWARE: dict[str, Hardware] = {row.name: row for row in _ROWS}
_ALIASES = {"a100": "a100-80", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "4090": "rtx4090"}


def hardware(name: str) -> Hardware:
    """The row of that name, whatever its case. ConfigError lists the names there are."""
    plain = name.strip().lower()
    plain = _ALIASES.get(plain, plain)
    if plain not in HARDWARE:
        raise ConfigError("--gpu", name, "one of " + ", ".join(HARDWARE))
    return HARDWARE[plain]
