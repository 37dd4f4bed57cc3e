"""Flags of the commands that simulate: what a replica is, and how it schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli.choices import OneOf
from paceline.cli.flag_sets import flag
from paceline.cli.numbers import Span
from paceline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from paceline.sim.latency import Deployment


WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5}
MODEL, GPU = "llama-3.1-8b", "h100"  # where neither a flag nor a profile says


@dataclass(frozen=True)
class DeploymentFlags:
    """The model and the device of a replica."""

    model: Annotated[
        str | None, flag("A known name, a config.json, or a directory with one; default: " + MODEL + ".")
    ] = None
    gpu: Annotated[
        str | None, flag("A device by name; for plan several, separated by commas; default: " + GPU + ".")
    ] = None
    tensor_parallel: Annotated[
        str, flag("Devices of a replica; for plan several, separated by commas.", "--tensor-parallel", "--tp")
    ] = "1"
    weights: Annotated[str, flag("bf16, fp16, fp8, int8, int4 or fp4."), OneOf(*WEIGHT_BYTES)] = "bf16"
    kv_dtype: Annotated[str, flag("bf16, fp16 or fp8."), OneOf("bf16", "fp16", "fp8")] = "bf16"
    price: Annotated[float | None, flag("Of a device, $/h; default: a round figure."), Span(0, 10**6)] = None
    engine: Annotated[str, flag("Whose step times: vllm, trtllm, roofline, or a file of `paceline fit`.")] = "vllm"
    kv_tokens: Annotated[int | None, flag("KV capacity of a replica as a real engine reports it."), Span(1, 2**28)] = (
        None
    )

    def deployments(self) -> tuple[Deployment, ...]:
        """Every device with every degree. ConfigError names the flag."""
        from paceline.sim.hardware import hardware
        from paceline.sim.latency import Deployment
        from paceline.sim.models import model

        try:
            shape = model(self.model or MODEL)
        except ModelError as error:
            raise ModelError(f"--model: {error}") from None
        found = []
        for name in (self.gpu or GPU).split(","):
            gpu = hardware(name) if self.price is None else hardware(name).at_price(self.price)
            for text in self.tensor_parallel.split(","):
                if not text.strip().isdigit() or int(text) < 1:
                    raise ConfigError("--tensor-parallel", text, "a whole number of at least 1")
                found.append(Deployment(shape, gpu, int(text), WEIGHT_BYTES[self.weights], WEIGHT_BYTES[self.kv_dtype]))
        return tuple(found)


@dataclass(frozen=True)
class KnobFlags:
    """How a replica schedules."""

    discipline: Annotated[str, flag("How requests are scheduled; for simulate several, to compare.")] = "paceline"
    order: Annotated[str | None, flag("Who is next; default: the discipline's.")] = None
    max_num_batched_tokens: Annotated[
        int | None, flag("Most tokens of a step; default: the profile's, else 8192."), Span(1, 2**24)
    ] = None
    max_num_seqs: Annotated[
        int | None, flag("Most sequences in the batch; default: the profile's, else 256."), Span(1, 2**16)
    ] = None
    long_prefill_token_threshold: Annotated[
        int, flag("Most tokens of one prompt in a step; 0: no limit."), Span(0, 10**9)
    ] = 0
    host_memory: Annotated[float, flag("GB of host memory for KV that the device gives up."), Span(0, 10**4)] = 0.0
    disk_memory: Annotated[
        float, flag("GB of disk for KV that the host gives up; needs --host-memory."), Span(0, 10**4)
    ] = 0.0
    disk_bandwidth: Annotated[float, flag("GB/s of that disk."), Span(above=0, most=10**6)] = 3.0
    gpu_memory_utilization: Annotated[float, flag("Share of a device's memory to use."), Span(above=0, most=1)] = 0.9
    prefix_caching: Annotated[
        bool, flag("Reuse KV of prompts seen before.", "--enable-prefix-caching/--no-enable-prefix-caching")
    ] = True
    router: Annotated[str, flag("round-robin, least-load, power-of-two, prefix or session.")] = "least-load"

    def knobs(self, discipline: str | None = None, profiled: dict[str, Any] | None = None) -> Any:
        """`profiled`: what a profile says of the engine that was measured."""
        from paceline.sim.question import Knobs

        self._refuse_fixed()
        usual = Knobs()
        profiled = profiled or {}
        return Knobs(
            discipline or self.discipline,
            self.order,
            profiled.get("max_num_batched_tokens", usual.token_budget)
            if self.max_num_batched_tokens is None
            else self.max_num_batched_tokens,
            profiled.get("max_num_seqs", usual.max_num_seqs) if self.max_num_seqs is None else self.max_num_seqs,
            self.long_prefill_token_threshold,
            self.host_memory,
            self.disk_memory,
            self.disk_bandwidth,
            self.gpu_memory_utilization,
            self.prefix_caching,
        )

    def _refuse_fixed(self) -> None:
        """ConfigError for what makes no sense under the discipline; of several, each takes what it can."""
        from paceline.core.disciplines import discipline

        if "," in self.discipline:
            return
        row, chunk = discipline(self.discipline, self.order), self.long_prefill_token_threshold
        fixed, why = row.fixed.get("long_prefill_token_threshold", (chunk, ""))
        if chunk != fixed:
            raise ConfigError("--long-prefill-token-threshold", chunk, f"{fixed} under {row.name}: {why}")
