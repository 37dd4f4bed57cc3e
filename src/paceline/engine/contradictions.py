"""Settings that contradict each other whatever the model and the machine: told before a model is looked for."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.errors import ConfigError, flag_of

_SETS = ("avx512_bf16", "avx512", "avx2", "generic")
_HELD = ("keep", "int8", "int4")
_NATIVE = "native kernels do that"
_CPU = "that is for the CPU"


class Contradiction(NamedTuple):
    """`setting` with one of `values` cannot be beside `other` with one of `others`."""

    setting: str
    values: tuple[str, ...]
    other: str
    others: tuple[str, ...]
    why: str


TABLE = (
    Contradiction("quantization", _HELD, "kernels", ("off",), _NATIVE),
    Contradiction("kv_cache_dtype", ("int8",), "kernels", ("off",), _NATIVE),
    Contradiction("attention", ("cpu",), "kernels", ("off",), _NATIVE),
    Contradiction("kv_cache_dtype", ("int8",), "attention", ("reference", "varlen"), "only attention cpu reads it"),
    Contradiction("quantization", _HELD, "backend", ("transformers",), "only the native decoder does that"),
    Contradiction("quantization", _HELD, "device", ("cuda",), _CPU),
    Contradiction("kv_cache_dtype", ("int8",), "device", ("cuda",), _CPU),
    Contradiction("attention", ("cpu",), "device", ("cuda",), _CPU),
    Contradiction("kernels", _SETS, "device", ("cuda",), _CPU),
    Contradiction("attention", ("varlen",), "device", ("cpu",), "that is for CUDA"),
)


def refuse_contradictions(settings: Any) -> None:
    """ConfigError that names both settings, for the first two of an EngineConfig that contradict each other."""
    for setting, values, other, others, why in TABLE:
        value, beside = getattr(settings, setting), getattr(settings, other)
        if value in values and beside in others:
            raise ConfigError(flag_of(setting), value, f"another, or left out, with {flag_of(other)} {beside}: {why}")
