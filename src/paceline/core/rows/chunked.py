"""Rows that cut prompts into chunks so that decodes need not wait for long."""

from __future__ import annotations

from types import MappingProxyType

from paceline.core.admissions import PromptFits
from paceline.core.compositions import AlternatingTurns, SplitFuse, StallFree
from paceline.core.discipline import Discipline
from paceline.core.evictions import LatestArrival
from paceline.core.evictions.skipped import Skipped
from paceline.core.head_of_line import Stop

SARATHI = Discipline(
    name="sarathi",
    after="Sarathi-Serve, stall-free batching (Agrawal et al., OSDI 2024)",
    order="fcfs",
    admission=PromptFits(),
    head_of_line=Stop(),
    composition=StallFree(),
    eviction=LatestArrival(),
    defaults=MappingProxyType(
        {
            "block_size": 16,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 512,
            "watermark": 0.01,
            "enable_prefix_caching": False,
        }
    ),
    failure_modes=(
        "a prompt holds the blocks of all its tokens from its first chunk on",
        "a small token budget reads K/V again for every chunk and lengthens the time to the first token",
        "a decode wants a free block even where its last block has room (not when it runs alone)",
    ),
)

SIMPLE_CHUNKING = Discipline(
    name="simple-chunking",
    after="Sarathi-Serve's control: chunks without mixing",
    order="fcfs",
    admission=PromptFits(),
    head_of_line=Stop(),
    composition=AlternatingTurns(),
    eviction=LatestArrival(),
    defaults=MappingProxyType(
        {
            "block_size": 16,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 512,
            "watermark": 0.01,
            "enable_prefix_caching": False,
        }
    ),
    failure_modes=("every other step is without decodes as long as prompts wait",),
)

FASTGEN = Discipline(
    name="fastgen",
    after="DeepSpeed-FastGen, Dynamic SplitFuse",
    order="fcfs",
    admission=PromptFits(ahead=0),
    head_of_line=Stop(),
    composition=SplitFuse(),
    eviction=Skipped(),
    defaults=MappingProxyType(
        {
            "block_size": 64,
            "max_num_seqs": 512,
            "max_num_batched_tokens": 768,
            "enable_prefix_caching": False,
        }
    ),
    empty_steps="when no decode has room, one is preempted in a step without a forward",
    failure_modes=(
        "when all decodes are stuck, one is flushed and computed again, behind everybody who waits",
        "a decode may be skipped while later ones with room run",
        "a prompt starts only when the whole of it fits, and everything behind it waits",
    ),
)

ROWS = (SARATHI, SIMPLE_CHUNKING, FASTGEN)
