"""Every setting of an engine, with its default, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.core.config import SchedulerConfig
from paceline.core.discipline import Discipline
from paceline.core.disciplines import discipline
from paceline.core.queue_limits import QueueLimits
from paceline.engine.contradictions import refuse_contradictions
from paceline.engine.goals import Tuning, tune
from paceline.errors import ConfigError, flag_of

if TYPE_CHECKING:
    from paceline.exec.config import ExecutorConfig

LARGEST_SEED = 2**63 - 1
LONGEST_TIMEOUT = 1e9  # seconds
MOST_LOGGED = 1_000_000

# What the scheduler is told by whoever builds it, not by the user.
FOUND = ("num_blocks", "max_model_len", "eos_token_ids", "num_host_blocks", "num_disk_blocks", "kv_identity")


@dataclass(frozen=True)
class EngineConfig:
    """Names as vLLM's flags where the meaning is the same. None means: not set, so that the discipline, the model or
    the machine decides.

    Raises ConfigError naming the flag, its value and the allowed range.
    """

    # model
    model: str = "smollm2-135m"  # a name Paceline knows, a directory, a .gguf file or a hub id
    served_model_name: str | None = None  # None: `model` as given
    tokenizer: str | None = None  # directory or hub id; None: the model's own
    chat_template: str | None = None  # Jinja source or a file with it; None: the model's own
    dtype: str = "auto"
    device: str = "auto"
    quantization: str = "auto"  # of the weights, on the CPU: auto, keep, none, int8 or int4
    threads: int | None = None  # compute threads; None: one per core
    max_model_len: int | None = None  # most tokens of a sequence; None: the model's context, as far as the KV holds
    # KV cache
    block_size: int | None = None
    kv_cache_dtype: str = "auto"  # auto: `dtype`; int8, on the CPU
    kv_cache_memory: int | None = None  # bytes; goes before `gpu_memory_utilization`
    gpu_memory_utilization: float | None = None  # share of the memory; see ExecutorConfig for the default
    num_blocks: int | None = None  # goes before both
    swap_space: int | None = None  # bytes of host memory for blocks that leave the device
    num_host_blocks: int | None = None  # goes before `swap_space`
    disk_kv: str | None = None  # directory for blocks that leave the host; what earlier runs left there is used again
    disk_kv_size: int | None = None  # bytes
    kv_load: str | None = None  # load from host and disk: auto (where that beats computing), always or never
    kv_headroom: float | None = None  # share of the blocks that stays free when one starts; the same as watermark
    attention: str = "auto"
    kernels: str = "auto"
    backend: str = "auto"
    enable_prefix_caching: bool | None = None
    # scheduler
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None
    watermark: float | None = None
    discipline: str = "paceline"
    order: str | None = None  # None: the discipline's own
    preemption: str | None = None  # recompute, swap, hold, auto or threshold:TOKENS; None: the discipline's own
    victim: str | None = None  # a name of VICTIMS; None: the discipline's own
    max_preemptions: int | None = None  # of one sequence, which then is protected; 0: any number
    knobs: dict[str, Any] = field(default_factory=dict)  # numbers of the discipline's objects, and other settings
    optimize: str | None = None  # a name of GOALS: sets for it what is not set here
    # the door
    max_queued_requests: int | None = None  # these six: knobs of every discipline, see QueueLimits
    max_queued_tokens: int | None = None
    max_queue_wait: float | None = None
    max_queued_requests_per_tenant: int | None = None
    max_queued_tokens_per_tenant: int | None = None
    max_queue_wait_per_tenant: float | None = None
    queue_timeout: float | None = None  # seconds a request may wait that does not say; None: as long as it takes
    request_timeout: float | None = None  # seconds a request may take in all that does not say
    quotas: str | None = None  # a TOML file of tenants, their keys and quotas
    # engine
    seed: int | None = None  # of the generator that draws seeds for requests without one; None: from the machine
    shutdown_grace: float = 30.0  # seconds running requests get to finish on a clean stop
    max_restarts: int = 3  # engine crashes survived within `restart_window` before giving up
    restart_window: float = 60.0  # seconds
    watchdog_timeout: float = 300.0  # seconds without an answer after which an engine process is replaced; 0: never
    request_log_size: int = 1000  # requests that have ended of which it is still known where their time went

    def __post_init__(self) -> None:
        # What scheduler and executor check themselves is checked here and now, before a model is loaded.
        for name in self.knobs:
            if getattr(self, name, None) is not None and name in SchedulerConfig.__dataclass_fields__:
                raise ConfigError(flag_of(name), getattr(self, name), f"left out where --knob {name}=... is given")
        self._check_tiers()
        self.executor()
        refuse_contradictions(self)
        self._whole("request_log_size", 0, MOST_LOGGED)
        self._whole("max_restarts", 0)
        if self.threads is not None:
            self._whole("threads", 1, usable_threads())
        if self.max_model_len is not None:
            self._whole("max_model_len", 2)
        if self.seed is not None:
            self._whole("seed", 0, LARGEST_SEED)
        for name in ("queue_timeout", "request_timeout"):
            if (value := getattr(self, name)) is not None and not 0.0 < value <= LONGEST_TIMEOUT:
                raise ConfigError(flag_of(name), value, f"a number of seconds above 0 and at most {LONGEST_TIMEOUT:g}")
        for name in ("shutdown_grace", "restart_window", "watchdog_timeout"):
            if not 0.0 <= getattr(self, name) < 1e9:
                raise ConfigError(flag_of(name), getattr(self, name), "a number of seconds of at least 0")

    def _check_tiers(self) -> None:
        if self.kv_headroom is not None:
            if not 0.0 <= self.kv_headroom <= 0.5:
                raise ConfigError("--kv-headroom", self.kv_headroom, "a share of the KV blocks from 0 to 0.5")
            if self.watermark is not None or "watermark" in self.knobs:
                raise ConfigError("--kv-headroom", self.kv_headroom, "left out with --watermark, its other name")
        if self.disk_kv is not None and not self.disk_kv.strip():
            raise ConfigError("--disk-kv", self.disk_kv, "a directory")
        how = self.knobs.get("how") if self.preemption is None else self.preemption
        if how == "swap" and not (self.swap_space or self.num_host_blocks or self.disk_kv):
            flag = "--knob how" if self.preemption is None else "--preemption"
            raise ConfigError(flag, how, "another, or with host memory to swap to: --swap-space 4GiB")

    @property
    def model_name(self) -> str:
        """The name clients use."""
        return self.served_model_name or self.model

    def executor(self) -> ExecutorConfig:
        """The settings of the executor: those fields of ours that it has too, as the scheduler will have them."""
        from paceline.exec.config import ExecutorConfig

        wanted = {spec.name for spec in fields(ExecutorConfig)}
        ours = {spec.name for spec in fields(self)}
        given = {name: getattr(self, name) for name in sorted(wanted & ours)}
        scheduler = self.scheduler(num_blocks=self.num_blocks or 1, max_model_len=self.max_model_len or 1, eos_ids=())
        shared = wanted & set(SchedulerConfig.__dataclass_fields__) - set(FOUND)
        return ExecutorConfig(**{**given, **{name: getattr(scheduler, name) for name in sorted(shared)}})

    def scheduler(self, num_blocks: int, max_model_len: int, eos_ids: tuple[int, ...], **below: Any) -> SchedulerConfig:
        """The discipline's settings, changed by those given, and what the executor found room for.

        ConfigError for what makes no sense under the discipline. Where prompts are not cut, the longest fits in the
        token budget unless that was given. `below`: num_host_blocks and the like.
        """
        tuning = self.tuning
        row, settings = tuning.row, dict(tuning.settings)
        found = {"num_blocks": num_blocks, "max_model_len": max_model_len, "eos_token_ids": eos_ids, **below}
        if self.max_num_batched_tokens is None and "max_num_batched_tokens" not in self.knobs:
            usual = row.configure(**{**settings, **found, "max_model_len": 1})
            if not usual.enable_chunked_prefill:
                settings["max_num_batched_tokens"] = max(usual.max_num_batched_tokens, max_model_len)
        config = row.configure(**{**settings, **found})
        row.check(config)
        if self.disk_kv is not None and not config.enable_prefix_caching:
            why = f"left out where prefix caching is off, as under {row.name}: what is on disk is found by its content"
            raise ConfigError("--disk-kv", self.disk_kv, why)
        return config

    def schedule_by(self) -> Discipline:
        """The row of the table of disciplines, with the order and the knobs asked for."""
        return self.tuning.row

    @cached_property
    def tuning(self) -> Tuning:
        """The discipline and the settings of the scheduler, as given and as `optimize` has it."""
        settings = {spec.name for spec in fields(SchedulerConfig)} - set(FOUND)
        ours = {spec.name for spec in fields(self)}
        given = {name: getattr(self, name) for name in sorted(settings & ours) if getattr(self, name) is not None}
        for name in self.knobs:
            if name in FOUND:
                raise ConfigError("--knob", name, "something else: it is found when the model is loaded")
        given.update({name: value for name, value in self.knobs.items() if name in settings})
        knobs = {name: value for name, value in self.knobs.items() if name not in settings}
        limits = {spec.name: getattr(self, spec.name) for spec in fields(QueueLimits)}
        knobs.update({name: value for name, value in limits.items() if value is not None})
        if self.kv_headroom is not None:
            given["watermark"] = self.kv_headroom
        discipline(self.discipline, self.order).with_eviction(self.victim, self.preemption)  # to be told in its words
        if self.preemption is not None:
            knobs["how"] = self.preemption
        tuning = tune(self.optimize, self.discipline, self.order, knobs, given)
        return replace(tuning, row=tuning.row.with_eviction(self.victim))

    def _whole(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            span = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise ConfigError(flag_of(name), value, f"a whole number {span}")


def usable_threads() -> int:
    """Hardware threads this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
