"""Settings of the scheduler, with their defaults, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError, flag_of

LOADS = ("auto", "always", "never")


@dataclass(frozen=True)
class SchedulerConfig:
    """Names as vLLM's flags where the meaning is the same. `num_blocks` counts usable blocks.

    Raises ConfigError naming the flag, its value and the allowed range.
    """

    num_blocks: int
    num_host_blocks: int = 0  # blocks in host memory for swapped sequences and evicted contents; 0: no tiers
    num_disk_blocks: int = 0  # blocks on disk, for contents the host gives up
    kv_identity: str = ""  # of the model, as far as K/V depend on it: part of the key of contents on host and disk
    kv_load: str = "auto"  # load contents from lower tiers: auto (where that beats computing), always, never
    max_preemptions: int = 0  # times a sequence may be preempted before it is protected; 0: any number
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0  # most tokens of one prompt in a step; 0: off
    long_prefill_token_threshold_adaptive: bool = False  # never below an even share of the token budget
    watermark: float = 0.0  # share of the blocks that must stay free when a sequence is admitted beside others
    scheduler_reserve_full_isl: bool = True  # admit only when the whole known sequence fits now
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._at_least("block_size", 1)
        self._at_least("num_blocks", 1)
        self._at_least("num_host_blocks", 0)
        self._at_least("num_disk_blocks", 0)
        self._at_least("max_preemptions", 0)
        if self.num_disk_blocks and not self.num_host_blocks:
            raise ConfigError("--num-host-blocks", 0, "at least 1 with --disk-kv: what disk gives back goes through it")
        if self.kv_load not in LOADS:
            raise ConfigError("--kv-load", self.kv_load, "one of " + ", ".join(LOADS))
        self._at_least("max_num_seqs", 1)
        self._at_least("max_model_len", 1)
        self._at_least("max_num_batched_tokens", 1)
        self._at_least("long_prefill_token_threshold", 0)
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError("--watermark", self.watermark, "a share from 0 up to, not including, 1")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                "--max-num-batched-tokens",
                self.max_num_batched_tokens,
                f"at least --max-model-len ({self.max_model_len}) when chunked prefill is off",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "--max-num-batched-tokens",
                self.max_num_batched_tokens,
                f"at least --max-num-seqs ({self.max_num_seqs}), so that every running sequence can decode each step",
            )

    def _at_least(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ConfigError(flag_of(name), value, f"a whole number of at least {low}")
