"""Rows after Hugging Face's servers."""

from __future__ import annotations

from types import MappingProxyType

from paceline.core.admissions.whole_life import WholeLife
from paceline.core.compositions.separate_prefill import SeparatePrefill
from paceline.core.discipline import Discipline
from paceline.core.evictions.nobody import Nobody
from paceline.core.head_of_line import Stop
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

ROWS = (TGI,)
