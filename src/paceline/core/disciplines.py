"""The table of disciplines: each is data, naming one object per decision point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from paceline.core.admission import Admission, KnownTokensFit
from paceline.core.composition import Composition, MixedChunks
from paceline.core.eviction import Eviction, LeastLost, LeastPreferred, Newest
from paceline.core.head_of_line import HeadOfLine, Skip, Stop
from paceline.core.orders import ORDERS
from paceline.core.overload import Accept, Overload
from paceline.errors import ConfigError


@dataclass(frozen=True)
class Discipline:
    """A named way to schedule: order + admission + head-of-line + composition + eviction + overload."""

    name: str
    after: str  # the system or paper whose decisions it takes
    order: str  # a name of ORDERS
    admission: Admission
    head_of_line: HeadOfLine
    composition: Composition
    eviction: Eviction
    overload: Overload = field(default_factory=Accept)
    cache: str = "radix"  # "radix": token-exact hits; "chain": whole blocks, evicted as vLLM V1 does
    forks: bool = True  # the n sequences of a request wait for the first to compute the prompt, then share it
    evictions: Mapping[str, Eviction] = field(
        default_factory=lambda: MappingProxyType({})
    )  # by order, where it differs

    def with_order(self, order: str) -> Discipline:
        """The same discipline under another queue policy."""
        if order not in ORDERS:
            raise ConfigError("--order", order, "one of " + ", ".join(sorted(ORDERS)))
        return replace(self, order=order, eviction=self.evictions.get(order, self.eviction))


DISCIPLINES: dict[str, Discipline] = {
    row.name: row
    for row in (
        Discipline(
            name="paceline",
            after="Paceline's own",
            order="fcfs",
            admission=KnownTokensFit(growth=16),
            head_of_line=Skip(),
            composition=MixedChunks(decode_first=True),
            eviction=LeastLost(),
        ),
        Discipline(
            name="vllm",
            after="vLLM V1, synchronous scheduling",
            order="fcfs",
            admission=KnownTokensFit(),
            head_of_line=Stop(),
            composition=MixedChunks(decode_first=False),
            eviction=Newest(),
            cache="chain",
            forks=False,
            evictions=MappingProxyType({"priority": LeastPreferred()}),
        ),
    )
}


def discipline(name: str, order: str | None = None) -> Discipline:
    """The row of that name, under its own or the given queue policy. ConfigError for a name not in the table."""
    if name not in DISCIPLINES:
        raise ConfigError("--discipline", name, "one of " + ", ".join(DISCIPLINES))
    row = DISCIPLINES[name]
    return row if order is None or order == row.order else row.with_order(order)
