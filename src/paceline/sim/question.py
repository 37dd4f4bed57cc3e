"""What a plan is asked for, and how a kind of replica is made for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.disciplines import discipline as discipline_named
from paceline.errors import ConfigError, PacelineError
from paceline.sim.capacity import Target, Traffic
from paceline.sim.cluster import ReplicaSpec
from paceline.sim.latency import Deployment

Progress = Callable[[str], None]


class PlanError(PacelineError):
    """There is no plan. The message says which target cannot be met, and what the best hardware reaches."""


@dataclass(frozen=True)
class Knobs:
    """How each replica schedules."""

    discipline: str = "paceline"
    order: str | None = None
    token_budget: int = 8192
    max_num_seqs: int = 256
    long_prefill_token_threshold: int = 0  # most tokens of one prompt in a step: chunks; 0: no limit
    host_gb: float = 0.0  # memory for KV that the device gives up
    disk_gb: float = 0.0  # disk for KV that the host gives up
    disk_gbs: float = 3.0  # bandwidth of that disk
    utilization: float = 0.9  # share of the device's memory that may be used
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for flag, value in (("--host-memory", self.host_gb), ("--disk-memory", self.disk_gb)):
            if not 0 <= value < math.inf:
                raise ConfigError(flag, value, "a finite number of GB of at least 0")
        if not 0 < self.disk_gbs < math.inf:
            raise ConfigError("--disk-bandwidth", self.disk_gbs, "a finite number of GB/s above 0")
        if self.disk_gb and not self.host_gb:
            raise ConfigError("--host-memory", self.host_gb, "above 0 with --disk-memory: what disk gives goes there")
        if not 0 < self.utilization <= 1:
            raise ConfigError("--gpu-memory-utilization", self.utilization, "a share above 0, at most 1")

    def describe(self) -> str:
        text = f"discipline {self.discipline}" + (f", order {self.order}" if self.order else "")
        text += f", {self.token_budget} tokens and {self.max_num_seqs} sequences a step"
        if self.long_prefill_token_threshold:
            text += f", prompts in chunks of {self.long_prefill_token_threshold}"
        text += f", {self.host_gb:g} GB of host memory" if self.host_gb else ""
        return text + (f", {self.disk_gb:g} GB of disk at {self.disk_gbs:g} GB/s" if self.disk_gb else "")


@dataclass(frozen=True)
class Question:
    """What is asked."""

    traffic: Traffic
    deployments: tuple[Deployment, ...]  # candidates
    targets: tuple[Target, ...]
    rate: float  # requests/s of the whole cluster
    knobs: Knobs = Knobs()
    engine: str = "vllm"
    router: str = "least-load"
    step_error: float = 0.10  # step times may be this much longer or shorter
    availability: float = 0.0  # share of the time in which the targets must hold though replicas fail; 0: not asked
    replica_availability: float = 0.99
    kv_tokens: int | None = None  # read from a real engine, instead of reckoned
    trial_requests: int = 3000
    what_ifs: bool = True

    def __post_init__(self) -> None:
        if not self.targets:
            raise ConfigError("targets", "none", "given: --ttft-p99, --tpot-p99, --e2e-p99 or --target")
        if not 0 < self.rate < math.inf:
            raise ConfigError("--rate", self.rate, "a finite number of requests per second above 0")
        if not 0 <= self.step_error < 1:
            raise ConfigError("--step-error", self.step_error, "a share from 0 to below 1")
        if not 0 <= self.availability < 1:
            raise ConfigError("--availability", self.availability, "a share below 1, such as 0.999")
        if not 0 < self.replica_availability <= 1:
            raise ConfigError("--replica-availability", self.replica_availability, "a share above 0")
        if self.trial_requests < 100:
            raise ConfigError("--trial-requests", self.trial_requests, "at least 100")


def name_of(deployment: Deployment) -> str:
    """Such as "llama-3.1-8b bf16 on 2 x h100"."""
    kind = {2.0: "bf16", 1.0: "fp8", 0.5: "4 bit"}.get(deployment.weight_bytes, f"{deployment.weight_bytes:g} bytes")
    devices = f"{deployment.tensor_parallel} x " if deployment.tensor_parallel > 1 else ""
    return f"{deployment.model.name} {kind} on {devices}{deployment.hardware.name}"


def _too_small(deployment: Deployment, knobs: Knobs, tokens: int, longest: int) -> str:
    """What does not fit where, with sizes, and the mend."""
    gpu, devices = deployment.hardware, deployment.tensor_parallel
    memory = (
        f"{gpu.memory_gb * devices:g} GB ({devices} x {gpu.memory_gb:g} GB)" if devices > 1 else f"{gpu.memory_gb:g} GB"
    )
    needed = deployment.kv_bytes_per_token * longest / 1e9
    if tokens <= 0:
        text = f"the weights do not fit: they are {deployment.weights / 1e9:,.4g} GB, and the memory is {memory}, "
        text += (
            f"of which {knobs.utilization:.0%} may be used; the longest request needs {needed:,.3g} GB more for its KV"
        )
    else:
        text = (
            f"there is room for {tokens:,} tokens of KV, and the longest request needs {longest:,} ({needed:,.3g} GB)"
        )
    return text + "; use more devices for a replica (--tensor-parallel), a --gpu with more memory, or smaller --weights"


def replica_spec(
    deployment: Deployment, knobs: Knobs, longest: int, kv_tokens: int | None = None, scale: float = 1.0
) -> ReplicaSpec:
    """A replica's settings. PlanError when the model, or the longest request, does not fit into its memory."""
    tokens = kv_tokens if kv_tokens is not None else deployment.kv_tokens(knobs.utilization, knobs.token_budget)
    if tokens < longest:
        raise PlanError(f"{name_of(deployment)}: {_too_small(deployment, knobs, tokens, longest)}")
    row = discipline_named(knobs.discipline, knobs.order)
    size = row.defaults.get("block_size", 16)
    settings = {
        "num_blocks": tokens // size,
        "max_num_seqs": knobs.max_num_seqs,
        "max_num_batched_tokens": max(knobs.token_budget, knobs.max_num_seqs),
        "max_model_len": longest + 1,
        "long_prefill_token_threshold": knobs.long_prefill_token_threshold,
        "num_host_blocks": int(knobs.host_gb * 1e9 / (deployment.kv_bytes_per_token * size)),
        "num_disk_blocks": int(knobs.disk_gb * 1e9 / (deployment.kv_bytes_per_token * size)),
    }
    if not row.fixed.get("enable_chunked_prefill", (True, ""))[0] or not row.defaults.get(
        "enable_chunked_prefill", True
    ):
        settings["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], longest + 1)
    if not knobs.prefix_caching:
        settings["enable_prefix_caching"] = False
    settings = {name: value for name, value in settings.items() if name not in row.fixed}
    return ReplicaSpec(
        row.configure(**settings),
        row,
        deployment.step_times().scaled(scale),
        block_bytes=deployment.kv_bytes_per_token * size / deployment.tensor_parallel,
        pcie_bandwidth=deployment.hardware.pcie_gbs * 1e9,
        disk_bandwidth=knobs.disk_gbs * 1e9 / deployment.tensor_parallel,
    )


def longest_request(traffic: Traffic) -> int:
    """Tokens, prompt and answer."""
    return max(request.prompt_len + request.output_len for request in traffic.workload.requests)
