"""Rows that run one batch at a time, and Orca, which was the first not to."""

from __future__ import annotations

from types import MappingProxyType

from paceline.core.admissions.whole_life import WholeLife
from paceline.core.compositions.closed_batch import ClosedBatch
from paceline.core.compositions.dynamic_batch import DynamicBatch
from paceline.core.compositions.mixed_chunks import MixedChunks
from paceline.core.discipline import Discipline
from paceline.core.evictions.nobody import Nobody
from paceline.core.head_of_line import Stop
from paceline.core.level_queues import LevelQueues

WHOLE_PROMPTS = MappingProxyType(
    {
        "enable_chunked_prefill": (False, "it takes prompts whole"),
        "long_prefill_token_threshold": (0, "it takes prompts whole"),
        "watermark": (0.0, "it promises whole lives, so there is nothing to keep free for"),
    }
)

STATIC = Discipline(
    name="static",
    after="FasterTransformer: request-level batching",
    order="fcfs",
    admission=WholeLife(reserve="max_model_len"),
    head_of_line=Stop(),
    composition=ClosedBatch(),
    eviction=Nobody(),
    cache="chain",
    forks=False,
    defaults=MappingProxyType({"max_num_seqs": 128, "enable_prefix_caching": False}),
    fixed=WHOLE_PROMPTS,
    together=True,
    failure_modes=(
        "the longest answer of a batch holds all others back: a short request takes as long as its slowest neighbour",
        "rows that are done are padding: they keep their slot and KV until the batch ends",
        "a request that arrives after the batch has started waits for all of it",
        "every request reserves KV for the longest context, however short it is",
    ),
)

DYNAMIC = Discipline(
    name="dynamic",
    after="Triton's dynamic batcher in front of a model that answers a batch as a whole",
    order="levels",
    admission=WholeLife(reserve="prompt+max_new"),
    head_of_line=Stop(),
    composition=DynamicBatch(),
    eviction=Nobody(),
    overload=LevelQueues(),
    cache="chain",
    forks=False,
    defaults=MappingProxyType({"max_num_seqs": 128, "enable_prefix_caching": False}),
    fixed=WHOLE_PROMPTS,
    together=True,
    empty_steps="while a batch smaller than preferred waits for more, max_queue_delay_microseconds at most",
    failure_modes=(
        "under a backlog preferred sizes are bypassed: late requests are dispatched up to the largest batch",
        "strict priority levels starve the last ones",
        "timeout_action delay may put a request off for ever",
        "a timeout is noticed only when the queue is looked at, so it is no hard deadline",
        "requests are counted, tokens are not: one long request holds its batch back",
    ),
)

ORCA = Discipline(
    name="orca",
    after="Orca: iteration-level scheduling, its Algorithm 1 with one batch in flight",
    order="fcfs",
    admission=WholeLife(reserve="prompt+max_new"),
    head_of_line=Stop(),
    composition=MixedChunks(decode_first=False),
    eviction=Nobody(),
    cache="chain",
    forks=False,
    defaults=MappingProxyType({"enable_prefix_caching": False}),
    fixed=WHOLE_PROMPTS,
    failure_modes=(
        "reservation waste: an answer shorter than max_tokens strands KV that others wait for",
        "a head that does not fit stops smaller requests behind it",
        "a long prompt is one step: everyone who decodes beside it waits",
    ),
)

ROWS = (STATIC, DYNAMIC, ORCA)
