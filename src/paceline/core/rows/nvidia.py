"""Rows after TensorRT-LLM's batch manager: a capacity policy, then a micro-batch."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from paceline.core.admissions.known_tokens_fit import KnownTokensFit
from paceline.core.admissions.whole_life import WholeLife
from paceline.core.compositions.contexts_first import ContextsFirst
from paceline.core.discipline import Discipline
from paceline.core.evictions.nobody import Nobody
from paceline.core.evictions.victims import Newest
from paceline.core.head_of_line import Stop

DEFAULTS = MappingProxyType({"max_num_seqs": 2048, "max_num_batched_tokens": 8192, "enable_chunked_prefill": False})
PROMISED = MappingProxyType({"watermark": (0.0, "it promises whole lives, so there is nothing to keep free for")})

NO_EVICT = Discipline(
    name="trtllm-no-evict",
    after="TensorRT-LLM: in-flight batching, GUARANTEED_NO_EVICT",
    order="fcfs",
    admission=WholeLife(reserve="prompt+max_new"),
    head_of_line=Stop(),
    composition=ContextsFirst(),
    eviction=Nobody(),
    cache="chain",
    forks=False,
    defaults=DEFAULTS,
    fixed=PROMISED,
    failure_modes=(
        "under-fills when max_tokens is loose: who asks for 4,096 tokens and says 50 reserves for 4,096",
        "a head that does not fit stops smaller requests behind it",
        "a prompt that would get less than a unit waits, and ones shorter than that pass it, without end",
    ),
)

STATIC_BATCH = replace(
    NO_EVICT,
    name="trtllm-static",
    after="TensorRT-LLM: STATIC_BATCH",
    composition=ContextsFirst(closed=True),
    failure_modes=(
        "a request that arrives after the batch has started waits for all of it",
        "rows of short answers stay empty until the longest has ended (but each is answered when it ends)",
    ),
)

MAX_UTILIZATION = replace(
    NO_EVICT,
    name="trtllm-max-utilization",
    after="TensorRT-LLM: in-flight batching, MAX_UTILIZATION",
    admission=KnownTokensFit(growth=0),
    eviction=Newest(),
    fixed=MappingProxyType({"scheduler_reserve_full_isl": (True, "a context takes the blocks of all its prompt")}),
    failure_modes=(
        "pauses the newest again and again when KV is tight; each time its prompt and answer are computed anew",
        "a prompt that fits now says nothing about its answer: what is admitted may have to be paused at once",
    ),
)

ROWS = (NO_EVICT, MAX_UTILIZATION, STATIC_BATCH)
