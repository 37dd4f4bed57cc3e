"""From an engine's configuration to a scheduler and an executor that fit together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.core.scheduler import Scheduler
from paceline.engine.config import EngineConfig
from paceline.engine.tokenizer import eos_token_ids

if TYPE_CHECKING:
    from paceline.exec.executor import ModelExecutor


@dataclass(frozen=True)
class Built:
    """`info` says in plain values what was built: model, vocab_size, max_model_len, num_blocks, description, ..."""

    scheduler: Scheduler
    executor: ModelExecutor
    source: str
    info: dict[str, Any]


def build(
    config: EngineConfig,
    progress: Callable[[str], None] = lambda text: None,
    resolved: Callable[[str], None] = lambda source: None,
) -> Built:
    """Load the model and make the scheduler for it. `resolved` gets the model's directory or file as soon as it is
    known, before the weights are loaded. Raises ModelError and ConfigError."""
    from paceline.exec.source import resolve

    progress(f"finding {config.model}")
    source = resolve(config.model)
    path = str(source.path)
    resolved(path)
    progress(f"loading {path}")
    from paceline.exec.executor import ModelExecutor  # imports torch

    ends = eos_token_ids(path)
    executor = ModelExecutor(config.executor(), source=source, eos_token_ids=ends)
    tiers = executor.tiers
    below: dict[str, Any] = {}
    if tiers is not None:
        below = {"num_host_blocks": executor.num_host_blocks, "num_disk_blocks": tiers.num_disk_blocks}
        below["kv_identity"] = tiers.identity.hex()
    settings = config.scheduler(executor.num_blocks, executor.max_model_len, ends, **below)
    scheduler = Scheduler(settings, config.schedule_by(), () if tiers is None else tiers.found)
    description = [*executor.description, scheduling(scheduler), *headroom(scheduler)]
    for line in description:
        progress(line)
    info = {
        "model": path,
        "vocab_size": executor.vocab_size,
        "max_model_len": executor.max_model_len,
        "num_blocks": executor.num_blocks,
        "block_size": executor.block_size,
        "num_host_blocks": executor.num_host_blocks,
        "num_disk_blocks": 0 if tiers is None else tiers.num_disk_blocks,
        "dtype": str(executor.dtype).removeprefix("torch."),
        "device": str(executor.device),
        "discipline": scheduler.discipline.name,
        "order": scheduler.discipline.order,
        "enable_prefix_caching": scheduler.config.enable_prefix_caching,
        "description": description,
    }
    return Built(scheduler, executor, path, info)


def scheduling(scheduler: Scheduler) -> str:
    """One line on how requests are scheduled."""
    row, config = scheduler.discipline, scheduler.config
    cache = "on" if config.enable_prefix_caching else "off"
    whole = "" if config.enable_chunked_prefill else ", as prompts are taken whole"
    return (
        f"scheduling {row.name}, order {row.order}: {config.max_num_seqs:,} sequences and "
        f"{config.max_num_batched_tokens:,} tokens a step at most{whole}, prefix cache {cache}"
    )


def headroom(scheduler: Scheduler) -> list[str]:
    """What the KV headroom means here; nothing where there is none."""
    config = scheduler.config
    if not config.watermark:
        return []
    blocks = int(config.watermark * config.num_blocks)
    return [
        f"KV headroom {config.watermark:.0%}: nobody starts beside others unless {blocks:,} of {config.num_blocks:,} "
        "blocks stay free, so that running sequences grow without preempting each other (10 to 20 % is usual; more: "
        "smaller batches, fewer preemptions)"
    ]
