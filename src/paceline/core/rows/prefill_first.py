"""Rows whose steps are all prefill or all decode, and that prefill first."""

from __future__ import annotations

from types import MappingProxyType

from paceline.core.admissions import DiscountedOutputFits, OutputFits, PeakFits, PromptFits
from paceline.core.compositions import PrefillOrDecode
from paceline.core.discipline import Discipline
from paceline.core.evictions import LatestArrival, Newest, ShortestOutput
from paceline.core.evictions.nobody import Nobody
from paceline.core.head_of_line import SkipBudget, Stop

VLLM_V0 = Discipline(
    name="vllm-v0",
    after="vLLM 0.1.4 and later V0 (Kwon et al., SOSP 2023)",
    order="fcfs",
    admission=PromptFits(ahead=1),
    head_of_line=Stop(),
    composition=PrefillOrDecode(cut="first", spare=1),
    eviction=LatestArrival(),
    defaults=MappingProxyType(
        {
            "block_size": 16,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 2560,
            "watermark": 0.01,
            "enable_prefix_caching": False,
        }
    ),
    failure_modes=(
        "decodes stand still while prompts stream in: the worst time between tokens of all rows",
        "with little KV, sequences are preempted and computed again and again",
        "swapped sequences starve waiting ones; when the host is full we recompute, where the original dies",
        "a decode wants a free block even where its last block has room (not when it runs alone)",
        "a prompt longer than a step's budget is cut; the original refuses it",
        "the sequences of one request are preempted one by one, where the original takes all or none",
    ),
)

LIGHTLLM = Discipline(
    name="lightllm",
    after="LightLLM, admission by the peak of KV to come",
    order="fcfs",
    admission=PeakFits(),
    head_of_line=Stop(),
    composition=PrefillOrDecode(cut="first"),
    eviction=Newest(yields_turn=True),  # decodes go by arrival, not by admission
    cache="chain",
    defaults=MappingProxyType({"max_num_seqs": 1000, "max_num_batched_tokens": 8448}),
    failure_modes=(
        "wants limits on the output: loose ones strand KV as a reservation of whole lives does",
        "with router_token_ratio above 0 it guesses lengths, and preempts the newest when wrong",
        "decodes stand still while prompts stream in",
        "exact with blocks of one token; with larger ones it allows for what last blocks leave unused",
    ),
)

NANO_VLLM = Discipline(
    name="nano-vllm",
    after="nano-vllm",
    order="fcfs",
    admission=PromptFits(ahead=0),
    head_of_line=Stop(),
    composition=PrefillOrDecode(cut="first"),
    eviction=Newest(yields_turn=True),  # decodes go by arrival, not by admission
    defaults=MappingProxyType({"block_size": 256, "max_num_seqs": 512, "max_num_batched_tokens": 16384}),
    failure_modes=("decodes stand still while prompts stream in", "preempts often when KV is short"),
)

MINI_SGLANG = Discipline(
    name="mini-sglang",
    after="mini-SGLang",
    order="fcfs",
    admission=OutputFits(),
    head_of_line=Stop(),
    composition=PrefillOrDecode(cut="one"),
    eviction=Nobody(),
    cache="chain",
    defaults=MappingProxyType({"max_num_seqs": 256, "max_num_batched_tokens": 8192}),
    failure_modes=(
        "reserves whole lives: loose output limits strand KV",
        "decodes stand still while prompts stream in",
    ),
)

SGLANG = Discipline(
    name="sglang",
    after="SGLang 0.5",
    order="fcfs",
    admission=DiscountedOutputFits(),
    head_of_line=Stop(),
    composition=PrefillOrDecode(cut="one"),
    eviction=ShortestOutput(),
    defaults=MappingProxyType({"max_num_seqs": 1024, "max_num_batched_tokens": 8192}),
    failure_modes=(
        "prefill always beats decode: streams starve under a steady flow of prompts (see interval)",
        "what it preempts waits behind everybody, at the mercy of who is shorter",
        "after a preemption the new-token ratio stays high for hundreds of steps, and throughput low",
        "the head that does not fit stops the queue",
    ),
)

LMDEPLOY_PT = Discipline(
    name="lmdeploy-pt",
    after="LMDeploy's PyTorch engine",
    order="turns",
    admission=PromptFits(ahead=0),
    head_of_line=SkipBudget(),
    composition=PrefillOrDecode(cut="first", interval=16, below=0.5, early=True),
    eviction=Newest(yields_turn=True),  # decodes go by arrival, not by admission
    defaults=MappingProxyType(
        {
            "block_size": 64,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 8192,
            "enable_prefix_caching": False,
        }
    ),
    failure_modes=(
        "a request may wait through 16 decode steps although there is room",
        "short turns prefer short prompts: a long one may be passed until the next turn by arrival",
    ),
)

ROWS = (VLLM_V0, LIGHTLLM, NANO_VLLM, MINI_SGLANG, SGLANG, LMDEPLOY_PT)
