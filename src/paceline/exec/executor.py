"""Runs step plans on a model: the only thing the engine's loop knows of `exec`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from paceline.core.plan import IntArray, StepPlan, StepResult, TokenLogprobs
from paceline.exec.attention.choose import choose_attention
from paceline.exec.attention.metadata import TokenPlaces, build_metadata, token_places
from paceline.exec.config import ExecutorConfig
from paceline.exec.host import give_back_memory, set_threads
from paceline.exec.kv_memory import KVSize, size_kv
from paceline.exec.loader import choose_device, load_model
from paceline.exec.native import choose_kernels
from paceline.exec.sampler import Sampler
from paceline.exec.source import ModelSource, resolve
from paceline.exec.tier_store import open_tiers

__all__ = ["ExecutorConfig", "ModelExecutor"]

_PROMPT_CHUNK = 256  # prompt positions whose logits are held at once
_CUDA_WORKING = 512 << 20  # bytes a step's activations may take beside the logits


class ModelExecutor:
    """Loads a model, owns its K/V and its sampler, and executes step plans.

    Attributes:
        vocab_size, max_model_len, num_blocks, block_size, num_host_blocks: what the scheduler needs to know.
        tiers: host and disk, where there are any; the scheduler needs its `identity` and what disk has `found`.
        source: where the model came from; its files hold the tokenizer too.
        description: lines for the log at start: model, number format and device, attention, K/V size.

    Raises ModelError and ConfigError as `load_model` and `size_kv` do.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        *,
        source: ModelSource | None = None,
        eos_token_ids: Iterable[int] | None = None,
    ) -> None:
        """`eos_token_ids` are what `min_tokens` holds back; None: those the model's files name."""
        self.config = config
        self.source = source or resolve(config.model)
        threads = set_threads(config.threads)
        device = choose_device(config)
        kernels, kernels_line = choose_kernels(config.kernels, device)
        self.model = load_model(config, self.source)
        self.device, self.dtype = self.model.device, self.model.dtype
        layers = self.model.layers
        self.attention, attention_name = choose_attention(
            config.attention, self.dtype, device, layers, config.block_size, kernels, config.kv_cache_dtype
        )
        kv_dtype = self.dtype if config.kv_cache_dtype == "auto" else torch.int8
        self.vocab_size = self.model.vocab_size
        working = _CUDA_WORKING + config.max_num_seqs * self.vocab_size * 16 if device.type == "cuda" else 0
        self.kv = size_kv(config, layers, kv_dtype, device, self.model.max_positions, working)
        self.num_blocks, self.block_size = self.kv.num_blocks, self.kv.block_size
        self.max_model_len = self.kv.max_model_len
        self.attention.allocate(layers, self.num_blocks, self.block_size)
        computing = f"{type(self.model).__name__} in {self.dtype} over {_weight_formats(self.model)}"
        self.tiers = open_tiers(config, self.source, self.attention, computing)
        self.num_host_blocks = 0 if self.tiers is None else self.tiers.host.num_blocks
        ends = end_tokens(self.source) if eos_token_ids is None else tuple(eos_token_ids)
        self.sampler = Sampler(config.max_num_seqs, self.vocab_size, self.device, ends)
        self._prompt_asks: dict[int, tuple[int, int]] = {}  # row -> (alternatives, prompt length)
        self.description = _describe(self.source, self.model, attention_name, self.kv, threads)
        if device.type == "cpu":
            self.description.insert(2, f"kernels {kernels_line}")
        if self.tiers is not None:
            self.description += self.tiers.describe()
        give_back_memory()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """One forward pass. Reads the plan's matrices only before it returns.

        Raises LogitsError when the model gives numbers nothing can be sampled from.
        """
        begin = time.perf_counter()
        self._enter(plan)
        moved = self.tiers.save(plan) if self.tiers is not None else None
        if len(plan.copies):
            self.attention.copy_blocks(self._tensor(plan.copies.astype(np.int64)))
        lost: list[bytes] = []
        if self.tiers is not None and moved is not None:
            moved, lost = self.tiers.load(plan, moved), self.tiers.take_lost()
        if not len(plan.rows):
            return StepResult(np.zeros(0, np.int32), time.perf_counter() - begin, moved=moved, lost=lost)
        places = token_places(plan.starts, plan.counts)
        tokens = plan.tokens[plan.rows[places.row], places.position].astype(np.int64)
        used = -(-int((plan.starts + plan.counts).max()) // self.block_size)
        table = plan.block_table[:, :used][plan.rows]
        metadata = build_metadata(plan.starts, plan.counts, table, self.block_size, self.device, places)
        hidden = self.model.forward(self._tensor(tokens), self.attention, metadata)
        sampled, logprobs = self._sample(plan, hidden)
        prompt_logprobs = self._prompt_logprobs(plan, hidden, places) if self._prompt_asks else None
        return StepResult(sampled, time.perf_counter() - begin, logprobs, prompt_logprobs, moved, lost)

    def close(self) -> None:
        """Finish what is being written to disk."""
        if self.tiers is not None:
            self.tiers.close()

    def _enter(self, plan: StepPlan) -> None:
        if not plan.entered:
            return
        self.sampler.enter(plan)
        for entered in plan.entered:
            self._prompt_asks.pop(entered.row, None)
            if entered.params.prompt_logprobs is not None:
                self._prompt_asks[entered.row] = (entered.params.prompt_logprobs, entered.prompt_length)

    def _sample(self, plan: StepPlan, hidden: torch.Tensor) -> tuple[IntArray, list[TokenLogprobs | None] | None]:
        rows = plan.rows[plan.samples]
        if not len(rows):
            return np.zeros(0, np.int32), None
        last = plan.counts.cumsum(dtype=np.int64)[plan.samples] - 1
        if len(last) != len(hidden):
            hidden = hidden.index_select(0, self._tensor(last))
        if self.sampler.only_largest(rows) and (found := self.model.largest(hidden)) is not None:
            return self.sampler.checked(*found, rows), None
        return self.sampler.sample(self.model.logits(hidden), rows, plan)

    def _prompt_logprobs(
        self, plan: StepPlan, hidden: torch.Tensor, places: TokenPlaces
    ) -> dict[int, list[tuple[int, TokenLogprobs]]] | None:
        """For each prompt position computed now, the log-probability of the prompt token after it."""
        found: dict[int, list[tuple[int, TokenLogprobs]]] = {}
        ends = plan.counts.cumsum(dtype=np.int64)
        for index in np.flatnonzero(np.isin(plan.rows, list(self._prompt_asks))):
            row, start = int(plan.rows[index]), int(plan.starts[index])
            alternatives, prompt_length = self._prompt_asks[row]
            stop = min(start + int(plan.counts[index]), prompt_length - 1)
            offset = int(ends[index] - plan.counts[index]) - start
            entries: list[tuple[int, TokenLogprobs]] = []
            for first in range(start, stop, _PROMPT_CHUNK):
                last = min(first + _PROMPT_CHUNK, stop)
                logits = self.model.logits(hidden[offset + first : offset + last])
                targets = plan.tokens[row, first + 1 : last + 1]
                logprobs = self.sampler.prompt_logprobs(logits, targets, alternatives)
                entries += zip(range(first + 1, last + 1), logprobs, strict=True)
            if entries:
                found[row] = entries
        return found or None

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def end_tokens(source: ModelSource) -> tuple[int, ...]:
    """End-of-sequence ids a model's files name: generation_config.json goes before the config."""
    value = source.config.get("eos_token_id")
    if source.kind == "directory":
        try:
            generation = json.loads((source.path / "generation_config.json").read_text("utf-8"))
            value = generation.get("eos_token_id", value)
        except (OSError, ValueError, AttributeError):
            pass
    values = value if isinstance(value, list) else [value]
    return tuple(token for token in values if isinstance(token, int))


def _weight_formats(model: Any) -> str:
    return str(getattr(model, "weight_formats", str(model.dtype).removeprefix("torch.")))


def _describe(source: ModelSource, model: Any, attention: str, kv: KVSize, threads: int) -> list[str]:
    dtype, formats = str(model.dtype).removeprefix("torch."), _weight_formats(model)
    if formats != dtype:
        dtype = f"{dtype} over weights in {formats}"
    device = f"{model.device.type} with {threads} threads" if model.device.type == "cpu" else str(model.device)
    return [
        f"model {source.name} ({source.path})",
        f"{type(model).__name__} in {dtype} on {device}, attention {attention}",
        f"K/V {kv.num_blocks:,} blocks of {kv.block_size} ({kv.tokens * kv.bytes_per_token / 2**20:,.0f} MiB): "
        + kv.sentence(),
    ]
