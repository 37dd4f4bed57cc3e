"""The rows of the comparison: a workload, who takes part, what counts, and what is to be reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.bench.offline_workloads import Size


@dataclass(frozen=True)
class Row:
    """`ours` is compared with the best of `peers` by `figure`, a field of `paceline.bench.offline.Figures`."""

    title: str
    workload: str
    ours: str
    peers: tuple[str, ...]
    figure: str
    unit: str
    bound: float | None
    goal: float | None
    lower: bool = False
    size: Mapping[str, int] = field(default_factory=dict)

    def load_size(self, scale: float, seed: int) -> Size:
        """At a scale of all lengths."""
        return Size(**self.size, scale=scale, seed=seed)

    def best(self, values: list[float]) -> float:
        return min(values) if self.lower else max(values)

    def met(self, ratio: float, limit: float | None) -> bool | None:
        if limit is None:
            return None
        return ratio <= limit if self.lower else ratio >= limit


_BF16 = ("vllm", "openvino", "llama.cpp")
_ONE = {"streams": 1}

ROWS = {
    "w1": Row("W1, bf16", "w1", "paceline", ("vllm", "openvino"), "output_rate", "output tok/s", 1.5, 2.0),
    "w1-8-bit-kv": Row(
        "W1, bf16, K/V in 8 bits on both sides",
        "w1",
        "paceline 8-bit KV",
        ("openvino",),
        "output_rate",
        "output tok/s",
        1.5,
        2.0,
    ),
    "decode-1": Row(
        "decode, 1 stream, bf16", "decode", "paceline", _BF16, "ms_per_token", "ms/token", 1.1, 0.9, True, _ONE
    ),
    "decode-1-q4": Row(
        "decode, 1 stream, Q4_1 file",
        "decode",
        "paceline Q4_1",
        ("llama.cpp Q4_1",),
        "ms_per_token",
        "ms/token",
        0.8,
        0.5,
        True,
        _ONE,
    ),
    "decode-32": Row(
        "decode, 32 streams, bf16", "decode", "paceline", _BF16, "decode_rate", "tok/s", 1.3, 1.6, size={"streams": 32}
    ),
    "prefill": Row("prefill, 8 x 2,048, bf16", "prefill", "paceline", _BF16, "prompt_rate", "prompt tok/s", 1.0, 1.3),
    "cache": Row(
        "shared prefix, over own without cache",
        "shared-prefix",
        "paceline",
        ("paceline, no cache",),
        "request_rate",
        "requests/s",
        3.0,
        None,
    ),
    "shared-prefix": Row(
        "shared prefix, caches on",
        "shared-prefix",
        "paceline",
        ("vllm", "openvino"),
        "request_rate",
        "requests/s",
        None,
        1.0,
    ),
    "transformers": Row(
        "decode, 32 streams, bf16 (slow)",
        "decode",
        "paceline",
        ("transformers",),
        "decode_rate",
        "tok/s",
        1.3,
        1.6,
        size={"streams": 32, "output": 17},
    ),
}
"""By the name that --rows takes."""
