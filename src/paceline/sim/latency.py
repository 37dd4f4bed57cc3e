"""How long a step takes.

A step's time is a part that depends on its number of tokens alone, and terms linear in what its rows attend to:

    seconds = fixed(tokens) + sampled * per_sample + pairs * per_pair + context * per_context + first * per_first

where `first` of the sampled rows get their first token. Engines that plan a step and deal with the tokens of the one
before while the device works (vLLM since 0.14, SGLang) take no less than their host needs, whatever the device:

    seconds = max(seconds, host + sampled * host_row)

`analytic` derives these from a model's shape and a device's data sheet: a roofline with a soft corner, in the manner of
the planners BLIS and Vidur, with few enough constants to fit on published points. A measured profile gives them as they
were measured (see `profile`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.plan import StepPlan
from paceline.errors import ConfigError
from paceline.sim.hardware import Hardware
from paceline.sim.models import ModelShape

FloatArray = npt.NDArray[np.float64]

MOST_AT_ONCE = 256  # decode steps foreseen together
_STEPS = np.arange(float(MOST_AT_ONCE))

RESERVED_BYTES = 0.9e9  # context, kernels and graphs that a device keeps for itself
ACTIVATION_FACTOR = 24  # bytes of working memory per token of the budget and per byte of hidden state


class StepShape(NamedTuple):
    """What a step's time depends on."""

    tokens: int  # computed in the step
    sampled: int  # rows that get a new token
    pairs: float  # of prompt chunks: for each, count * (tokens before it + count / 2)
    rows: int  # that decode: one token, with some before it
    context: float  # tokens that the decoding rows attend to, all together


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a planned step."""
    counts, starts = plan.counts, plan.starts
    rows, total = counts.size, int(counts.sum())
    sampled = int(np.count_nonzero(plan.samples))
    if rows == total:
        return StepShape(total, sampled, 0.0, rows, float(int(starts.sum()) + rows))
    chunk = counts > 1
    count, start = counts[chunk].astype(np.float64), starts[chunk]
    pairs = float((count * (start + 0.5 * count)).sum())
    decode = rows - count.size
    context = float(int(starts.sum()) - int(start.sum()) + decode) if decode else 0.0
    return StepShape(total, sampled, pairs, decode, context)


class StepTimes:
    """The time of any step. A pure function: the same shape takes the same time, to the bit, however it is asked."""

    def __init__(
        self,
        fixed: Callable[[int], float],
        per_sample: float = 0.0,
        per_pair: float = 0.0,
        per_context: float = 0.0,
        window: int = 0,
        window_share: float = 0.0,
        scale: float = 1.0,
        per_first: float = 0.0,
        host: float = 0.0,
        host_row: float = 0.0,
    ) -> None:
        """`fixed` seconds by number of tokens; `window_share` of the layers look back only `window` tokens; `per_first`
        is what a request costs once, in the step that gives it its first token; `host`, and `host_row` for each sampled
        row, is what the host needs meanwhile."""
        self._fixed = fixed
        self._known: dict[int, float] = {}
        self.per_sample, self.per_pair, self.per_context = per_sample, per_pair, per_context
        self.window, self.window_share, self.scale = window, window_share, scale
        self.per_first = per_first
        self.host, self.host_row = host, host_row
        self._waits = host > 0 or host_row > 0  # can the device wait for the host?

    def scaled(self, factor: float) -> StepTimes:
        """Every step `factor` times as long, the host's share included."""
        return StepTimes(
            self._fixed,
            self.per_sample,
            self.per_pair,
            self.per_context,
            self.window,
            self.window_share,
            self.scale * factor,
            self.per_first,
            self.host,
            self.host_row,
        )

    def fixed(self, tokens: int) -> float:
        """Seconds of a step of so many tokens that attends to nothing."""
        known = self._known.get(tokens)
        if known is None:
            known = self._known[tokens] = float(self._fixed(tokens))
        return known

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        context = shape.context
        if self.window_share:
            context -= self.window_share * max(context - self.window * shape.rows, 0.0)
        base = self.fixed(shape.tokens) + self.per_sample * shape.sampled + self.per_pair * shape.pairs
        if self.per_first and shape.sampled > shape.rows:
            base += self.per_first * (shape.sampled - shape.rows)
        seconds = base + self.per_context * context
        if self._waits:
            seconds = max(seconds, self.host + self.host_row * shape.sampled)
        return seconds * self.scale

    def decode_run(self, rows: int, context: int, count: int) -> FloatArray:
        """Seconds of `count` decode steps in a row, MOST_AT_ONCE at most: float64[count].

        `context`: tokens that the rows of the first attend to, all together.
        """
        contexts = context + rows * _STEPS[:count]
        if self.window_share:
            contexts = contexts - self.window_share * np.maximum(contexts - self.window * rows, 0.0)
        base = self.fixed(rows) + self.per_sample * rows + self.per_pair * 0.0
        seconds = base + self.per_context * contexts
        if self._waits:
            np.maximum(seconds, self.host + self.host_row * rows, out=seconds)
        return seconds if self.scale == 1 else seconds * self.scale


@dataclass(frozen=True)
class Roofline:
    """Seconds of a step by its number of tokens: reading the weights and computing with them, whichever takes longer,
    with a soft corner between the two."""

    dense_read: float  # seconds to read what every token uses
    experts_read: float  # ... all experts
    idle: float  # share of the experts that a token does not use
    product: float  # seconds of the products of a token
    sharpness: float
    constant: float  # seconds whatever the tokens
    link: float  # seconds a token on the links between devices

    def __call__(self, tokens: int) -> float:
        read = self.dense_read + self.experts_read * (1 - math.pow(self.idle, tokens))
        product = self.product * tokens
        larger, smaller = max(read, product), min(read, product)
        both = larger * math.pow(1 + math.pow(smaller / larger, self.sharpness), 1 / self.sharpness)
        return both + self.constant + self.link * tokens


_MAY_BE_NOTHING = ("all_reduce", "step", "layer", "sample", "host", "host_row")


@dataclass(frozen=True)
class Coefficients:
    """What a data sheet does not say. They are only known together: trust the predictions, not the single numbers."""

    compute: float = 0.70  # share of the peak rate that matrix products reach
    memory: float = 0.80  # share of the bandwidth that reading weights reaches
    attention: float = 0.40  # share of the bf16 peak that attention over prompts reaches
    kv_read: float = 0.70  # share of the bandwidth that reading K/V reaches
    link: float = 0.60  # share of the link that an all-reduce reaches
    all_reduce: float = 8e-6  # seconds that one takes whatever its size
    step: float = 1.0e-3  # seconds of every step
    layer: float = 0.0  # seconds of every layer
    sample: float = 8e-6  # seconds of every sampled row
    sharpness: float = 4.0  # of the corner between reading weights and computing
    host: float = 0.0  # seconds that the host needs for a step while the device works; a step takes the longer
    host_row: float = 0.0  # ... and for every sampled row

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            low = 0.0 if spec.name in _MAY_BE_NOTHING else 1e-6
            if not (isinstance(value, (int, float)) and low <= value < math.inf):
                raise ConfigError(f"coefficient {spec.name}", value, f"a finite number of at least {low:g}")


@dataclass(frozen=True)
class Deployment:
    """A model on devices: everything the analytic model is made from."""

    model: ModelShape
    hardware: Hardware
    tensor_parallel: int = 1
    weight_bytes: float = 2.0  # per weight: 2 for bf16, 1 for fp8, 0.5 for 4 bits
    kv_bytes: float = 2.0  # per number in the KV cache
    coefficients: Coefficients = Coefficients()

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1 or self.model.heads % self.tensor_parallel:
            allowed = f"a divisor of the model's {self.model.heads} attention heads"
            raise ConfigError("--tensor-parallel", self.tensor_parallel, allowed)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of K/V that a token needs, over all devices. Devices beyond the number of KV heads hold copies."""
        shape, degree = self.model, self.tensor_parallel
        copies = degree if shape.kv_latent else max(degree / shape.kv_heads, 1.0)
        full = shape.kv_elements * self.kv_bytes * copies
        if shape.window_layers:  # what such layers keep does not grow; engines give them a pool of their own
            full *= 1 - shape.window_layers / shape.layers
        return full

    @property
    def weights(self) -> float:
        """Bytes of all weights; embeddings stay in bf16."""
        shape = self.model
        embeddings = shape.head_weights * (1 if shape.tied else 2)
        return (shape.parameters - embeddings) * self.weight_bytes + embeddings * 2.0

    def kv_tokens(self, utilization: float = 0.9, token_budget: int = 2048) -> int:
        """Tokens of K/V that fit beside weights and working memory. At most 0: the model does not fit."""
        devices = self.tensor_parallel
        working = RESERVED_BYTES + token_budget * self.model.hidden * 2 * ACTIVATION_FACTOR
        room = (utilization * self.hardware.memory_gb * 1e9 - working) * devices - self.weights
        return math.floor(room / self.kv_bytes_per_token)

    def with_coefficients(self, coefficients: Coefficients) -> Deployment:
        return replace(self, coefficients=coefficients)

    def step_times(self) -> StepTimes:
        """The analytic step times."""
        shape, gpu, own, degree = self.model, self.hardware, self.coefficients, self.tensor_parallel
        compute = gpu.tflops(self.weight_bytes) * 1e12 * degree * own.compute
        memory = gpu.bandwidth_gbs * 1e9 * degree
        head_bytes = shape.head_weights * 2.0
        kv_latent = degree if shape.kv_latent else max(degree / shape.kv_heads, 1.0)
        active = shape.dense_weights + shape.active_experts * shape.expert_weights
        idle = 1 - shape.active_experts / shape.experts if shape.experts else 1.0
        constant = own.step + own.layer * shape.layers + head_bytes / (memory * own.memory)
        experts = shape.experts * shape.expert_weights
        reduce = 2 * shape.layers * own.all_reduce if degree > 1 else 0.0
        links = gpu.link_gbs / 2 if gpu.link_gbs else gpu.pcie_gbs
        per_token_links = (
            2 * shape.layers * 2 * (degree - 1) / degree * shape.hidden * 2 / (links * 1e9 * own.link)
            if degree > 1
            else 0.0
        )

        read = self.weight_bytes / (memory * own.memory)  # seconds a weight
        return StepTimes(
            Roofline(
                shape.dense_weights * read,
                experts * read,
                idle,
                2.0 * active / compute,
                own.sharpness,
                constant + reduce,
                per_token_links,
            ),
            per_sample=own.sample + 2.0 * shape.head_weights / (gpu.bf16_tflops * 1e12 * degree * own.compute),
            per_pair=4.0 * shape.layers * shape.heads * shape.head_size
            / (gpu.bf16_tflops * 1e12 * degree * own.attention),
            per_context=shape.kv_elements * self.kv_bytes * kv_latent / (memory * own.kv_read),
            window=shape.window,
            window_share=shape.window_layers / shape.layers,
            host=own.host,
            host_row=own.host_row,
        )  # fmt: skip
