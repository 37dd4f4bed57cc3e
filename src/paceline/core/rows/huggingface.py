"""Rows after Hugging Face's servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from paceline.core.admissions.known_tokens_fit import KnownTokensFit
from paceline.core.admissions.whole_life import WholeLife
from paceline.core.compositions.separate_prefill import SeparatePrefill
from paceline.core.compositions.skip_starved import SkipStarved
from paceline.core.discipline import Discipline
from paceline.core.evictions.nobody import Nobody
from paceline.core.evictions.starved import Starved
from paceline.core.head_of_line import Skip, Stop
from paceline.core.overload import MostRequests

TGI = Discipline(
    name="tgi",
    after="Text Generation Inference: router queue v3, ratio as its launcher sets it (the router alone: 1.2)",
    order="fcfs",
    admission=WholeLife(reserve="prompt+max_new-1"),
    head_of_line=Stop(),
    composition=SeparatePrefill(),
    eviction=Nobody(),
    overload=MostRequests(),
    cache="chain",
    forks=False,
    defaults=MappingProxyType({"max_num_batched_tokens": 4096, "enable_chunked_prefill": False}),
    fixed=MappingProxyType(
        {
            "long_prefill_token_threshold": (0, "prompts are cut to the token budget only"),
            "watermark": (0.0, "it promises whole lives, so there is nothing to keep free for"),
        }
    ),
    failure_modes=(
        "over-reservation: an answer shorter than max_tokens strands KV that others wait for",
        "a big prompt at the head of the queue holds up all behind it",
        "without chunked prefill every step of prompts stops all decodes",
        "waiting_served_ratio adds up to max_waiting_tokens steps to the time to first token",
    ),
)

_TRANSFORMERS: Mapping[str, Any] = MappingProxyType(
    {
        "block_size": 256,
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 8192,
        "scheduler_reserve_full_isl": False,
    }
)

HF_FIFO = Discipline(
    name="hf-fifo",
    after="transformers 5, continuous batching, scheduler fifo",
    order="fcfs",
    admission=KnownTokensFit(),
    head_of_line=Skip(most=1 << 30, window=64),
    composition=SkipStarved(safety_margin=0.15),
    eviction=Starved(),
    cache="chain",
    forks=False,
    defaults=_TRANSFORMERS,
    failure_modes=(
        "a big prompt may be overtaken without end (here past 64 that wait, in the original past all)",
        "the safety margin is looked at once a step: prompts of that step may use it up and more",
        "after a preemption nobody starts until somebody has ended",
        "in the original nobody starts ever again where the last that runs is cancelled after a preemption; "
        "here any end counts",
    ),
)

HF_PREFILL_FIRST = replace(
    HF_FIFO,
    name="hf-prefill-first",
    after="transformers 5, continuous batching, scheduler prefill_first",
    composition=SkipStarved(prefill_first=True, safety_margin=0.0),
    failure_modes=("decodes wait while a prompt that was cut takes the whole token budget", *HF_FIFO.failure_modes),
)

ROWS = (TGI, HF_FIFO, HF_PREFILL_FIRST)
