"""The table of disciplines."""

from __future__ import annotations

from types import MappingProxyType

from paceline.core.admissions import KnownTokensFit
from paceline.core.compositions import MixedChunks
from paceline.core.discipline import Discipline
from paceline.core.displacement import Displacement
from paceline.core.evictions import LeastLost, LowestPriority, Newest
from paceline.core.head_of_line import Skip, Stop
from paceline.core.rows import chunked, closed, huggingface, nvidia, preemptive, prefill_first, resident
from paceline.errors import ConfigError

DISCIPLINES: dict[str, Discipline] = {
    row.name: row
    for row in (
        Discipline(
            name="paceline",
            after="Paceline's own",
            order="hrrn",
            admission=KnownTokensFit(growth=16),
            head_of_line=Skip(),
            composition=MixedChunks(decode_first=True),
            eviction=LeastLost(),
            displacement=Displacement(displace=True),
            defaults=MappingProxyType({"max_preemptions": 8}),
        ),
        Discipline(
            name="vllm",
            after="vLLM V1, synchronous scheduling",
            order="fcfs",
            admission=KnownTokensFit(uncounted=1),
            head_of_line=Stop(),
            composition=MixedChunks(decode_first=False),
            eviction=Newest(),
            cache="chain",
            forks=False,
            evictions=MappingProxyType({"priority": LowestPriority(yields_turn=False)}),
        ),
        *closed.ROWS,
        *nvidia.ROWS,
        *huggingface.ROWS,
        *chunked.ROWS,
        *prefill_first.ROWS,
        *resident.ROWS,
        *preemptive.ROWS,
    )
}

ALIASES = {"triton": "dynamic"}


def discipline(name: str, order: str | None = None) -> Discipline:
    """The row of that name, under its own or the given queue policy. ConfigError for a name not in the table."""
    name = ALIASES.get(name, name)
    if name not in DISCIPLINES:
        raise ConfigError("--discipline", name, "one of " + ", ".join([*DISCIPLINES, *ALIASES]))
    row = DISCIPLINES[name]
    return row if order is None or order == row.order else row.with_order(order)
