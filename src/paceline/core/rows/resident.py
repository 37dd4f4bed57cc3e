"""Rows in which a sequence has a place of its own for as long as it lives: a slot, or its turn by arrival."""

from __future__ import annotations

from types import MappingProxyType

from paceline.core.admissions import KnownTokensFit
from paceline.core.compositions import OldestFirst, Slots
from paceline.core.discipline import Discipline
from paceline.core.evictions import LatestArrival
from paceline.core.evictions.newer_than import NewerThan
from paceline.core.head_of_line import Stop

TURBOMIND = Discipline(
    name="turbomind",
    after="LMDeploy, TurboMind engine of 2026: persistent batch",
    order="fcfs",
    admission=KnownTokensFit(),
    head_of_line=Stop(),
    composition=OldestFirst(),
    eviction=NewerThan(),
    cache="chain",
    forks=False,
    defaults=MappingProxyType(
        {
            "block_size": 64,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 8192 + 128,
            "scheduler_reserve_full_isl": False,
            "enable_prefix_caching": False,
        }
    ),
    failure_modes=(
        "no fairness beyond arrival: an old sequence takes the blocks of newer ones, long prompts among them",
        "the number of rows is a queue that nobody sees",
        "a sequence without room holds its blocks while it idles",
        "here who yields gives up all its blocks; the original takes them one by one, and who comes back goes on from "
        "what is left (with prefix caching on it does so here too)",
    ),
)

LLAMACPP = Discipline(
    name="llamacpp",
    after="llama.cpp server: slots with one KV for all",
    order="fcfs",
    admission=KnownTokensFit(),
    head_of_line=Stop(),
    composition=Slots(),
    eviction=LatestArrival(yields_turn=True),
    forks=False,
    defaults=MappingProxyType({"max_num_seqs": 4, "max_num_batched_tokens": 2048}),
    failure_modes=(
        "the original asks for no KV before a prompt starts: when it runs out it purges an idle slot, else all active "
        "requests end with an error; here a prompt starts when it fits, and when KV runs out the newest is preempted",
        "low slots go first: prompts in high ones wait while the token budget lasts for others",
        "the number of slots is a queue without a limit",
        "the original reuses what the slot itself had last; here what any had",
    ),
)

ROWS = (TURBOMIND, LLAMACPP)
