"""Every setting of an engine, with its default, in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from paceline.core.config import SchedulerConfig
from paceline.core.discipline import Discipline
from paceline.core.disciplines import discipline
from paceline.core.queue_limits import QueueLimits
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.exec.config import ExecutorConfig

LARGEST_SEED = 2**63 - 1
LONGEST_TIMEOUT = 1e9  # seconds


@dataclass(frozen=True)
class EngineConfig:
    """Names as vLLM's flags where the meaning is the same. None means: chosen from the model or the machine.

    Raises ConfigError naming the flag, its value and the allowed range.
    """

    # model
    model: str = "smollm2-135m"  # a name Paceline knows, a directory, a .gguf file or a hub id
    served_model_name: str | None = None  # None: `model` as given
    tokenizer: str | None = None  # directory or hub id; None: the model's own
    chat_template: str | None = None  # Jinja source or a file with it; None: the model's own
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None  # compute threads; None: one per core
    max_model_len: int | None = None  # most tokens of a sequence; None: the model's context, as far as the KV holds
    # KV cache
    block_size: int = 16
    kv_cache_memory: int | None = None  # bytes; goes before `gpu_memory_utilization`
    gpu_memory_utilization: float | None = None  # share of the memory; see ExecutorConfig for the default
    num_blocks: int | None = None  # goes before both
    attention: str = "auto"
    backend: str = "auto"
    enable_prefix_caching: bool = True
    # scheduler
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    discipline: str = "paceline"
    order: str | None = None  # None: the discipline's own
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

    def __post_init__(self) -> None:
        # What scheduler and executor check themselves is checked here and now, before a model is loaded.
        self.schedule_by()
        self.executor()
        self.scheduler(num_blocks=1, max_model_len=self.max_model_len or 1, eos_ids=())
        self._whole("max_restarts", 0)
        if self.seed is not None:
            self._whole("seed", 0, LARGEST_SEED)
        for name in ("queue_timeout", "request_timeout"):
            if (value := getattr(self, name)) is not None and not 0.0 < value <= LONGEST_TIMEOUT:
                raise ConfigError(_flag(name), value, f"a number of seconds above 0 and at most {LONGEST_TIMEOUT:g}")
        for name in ("shutdown_grace", "restart_window"):
            if not 0.0 <= getattr(self, name) < 1e9:
                raise ConfigError(_flag(name), getattr(self, name), "a number of seconds of at least 0")

    @property
    def model_name(self) -> str:
        """The name clients use."""
        return self.served_model_name or self.model

    def executor(self) -> ExecutorConfig:
        """The settings of the executor: those fields of ours that it has too."""
        from paceline.exec.config import ExecutorConfig

        wanted = {spec.name for spec in fields(ExecutorConfig)}
        ours = {spec.name for spec in fields(self)}
        return ExecutorConfig(**{name: getattr(self, name) for name in sorted(wanted & ours)})

    def scheduler(self, num_blocks: int, max_model_len: int, eos_ids: tuple[int, ...]) -> SchedulerConfig:
        """The settings of the scheduler, given what the executor found room for."""
        return SchedulerConfig(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_prefix_caching=self.enable_prefix_caching,
            enable_chunked_prefill=self.enable_chunked_prefill,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            watermark=self.watermark,
            eos_token_ids=eos_ids,
        )

    def schedule_by(self) -> Discipline:
        """The row of the table of disciplines, with the order and the queue limits asked for."""
        limits = {spec.name: getattr(self, spec.name) for spec in fields(QueueLimits)}
        given = {name: value for name, value in limits.items() if value is not None}
        return discipline(self.discipline, self.order).with_knobs(given)

    def _whole(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            span = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise ConfigError(_flag(name), value, f"a whole number {span}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
