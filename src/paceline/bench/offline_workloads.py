"""The workloads that `paceline bench offline` and the comparison with other engines run, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.errors import ConfigError
from paceline.workload.requests import TimedRequest, Workload, check, named_key

FIRST_TOKEN = 100  # ids below are often special
OUTPUT_CLASSES = ((0.4, 10, 99), (0.4, 100, 500), (0.2, 501, 800))
"""(share of the requests, least and most output tokens) of w1."""


@dataclass(frozen=True)
class Size:
    """How large a workload is. None: its own usual number. ConfigError for what cannot be."""

    requests: int | None = None
    streams: int | None = None
    context: int | None = None
    output: int | None = None
    scale: float = 1.0
    """Multiplies all lengths, for short runs."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, flag in (("requests", "--requests"), ("streams", "--streams"), ("context", "--context")):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(flag, value, "at least 1")
        if self.output is not None and self.output < 1:
            raise ConfigError("--output-len", self.output, "at least 1")
        if not 0 < self.scale <= 1:
            raise ConfigError("--scale", self.scale, "above 0, at most 1")

    def tokens(self, count: int) -> int:
        """A length at this scale."""
        return max(1, round(count * self.scale))


def w1(size: Size) -> Workload:
    """Prompts of 16 to 512 random tokens; 10 to 99, 100 to 500 or 501 to 800 tokens out for 40, 40 and 20 %."""
    count = size.requests or 64
    generator = np.random.default_rng((size.seed, 64))
    prompts = generator.integers(16, 513, count)
    shares = np.cumsum([share for share, _, _ in OUTPUT_CLASSES])
    kinds = np.searchsorted(shares, (np.arange(count) + 0.5) / count)  # exact shares, so that seeds are alike
    outputs = [int(generator.integers(low, high + 1)) for _, low, high in (OUTPUT_CLASSES[kind] for kind in kinds)]
    order = generator.permutation(count)
    pairs = [(size.tokens(int(prompts[index])), size.tokens(outputs[index])) for index in order.tolist()]
    return _all_at_once("w1", [((), prompt, output) for prompt, output in pairs])


def shared_prefix(size: Size) -> Workload:
    """64 prompts of 1,000 tokens that all share and 50 of their own; 32 tokens out."""
    shared = ((named_key("shared prefix"), size.tokens(size.context or 1000)),)
    one = (shared, size.tokens(50), size.tokens(size.output or 32))
    return _all_at_once("shared-prefix", [one] * (size.requests or 64))


def decode(size: Size) -> Workload:
    """Streams that all decode at once after a prompt of `context` tokens: 128 tokens each after the first."""
    one = ((), size.tokens(size.context or 512), size.tokens(size.output or 129))
    return _all_at_once("decode", [one] * (size.streams or size.requests or 32))


def prefill(size: Size) -> Workload:
    """8 prompts of 2,048 tokens, one token out."""
    return _all_at_once(
        "prefill", [((), size.tokens(size.context or 2048), size.tokens(size.output or 1))] * (size.requests or 8)
    )


WORKLOADS: dict[str, Callable[[Size], Workload]] = {
    "w1": w1,
    "shared-prefix": shared_prefix,
    "decode": decode,
    "prefill": prefill,
}


def workload(name: str, size: Size) -> Workload:
    """The workload of that name; ConfigError for another name."""
    if name not in WORKLOADS:
        raise ConfigError("--workload", name, "one of " + ", ".join(WORKLOADS))
    return check(WORKLOADS[name](size))


def longest(load: Workload) -> int:
    """Most tokens of one of its sequences, prompt and output."""
    return max(request.prompt_len + request.output_len for request in load.requests)


def _all_at_once(name: str, wanted: list[tuple[tuple[tuple[int, int], ...], int, int]]) -> Workload:
    """Requests of (shared parts, own prompt tokens, output tokens)."""
    requests = [
        TimedRequest(
            str(number),
            0.0,
            sum(length for _, length in shared) + own,
            output,
            parts=(*shared, (-1 - number, own)),
        )
        for number, (shared, own, output) in enumerate(wanted)
    ]
    return Workload(requests, name, "all at once", source="generated")
