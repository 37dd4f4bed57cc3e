"""A random order that is the same in every run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.core.orders.heap import HeapQueue
from paceline.core.request import Sequence
from paceline.errors import ConfigError

_MASK = (1 << 64) - 1


def scatter(seed: int, number: int) -> int:
    """64 bits that look random: the finaliser of splitmix64 over both."""
    value = (seed * 0x9E3779B97F4A7C15 + number + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Shuffled(HeapQueue):
    def __init__(self, seed: int, span: int) -> None:
        super().__init__()
        self._seed, self._span = seed, span

    def key(self, sequence: Sequence) -> tuple[Any, ...]:
        number = sequence.number
        return (number // self._span, scatter(self._seed, number), number)


@dataclass(frozen=True)
class ShuffledPolicy:
    """Random within each `span` sequences that arrive one after another. A control for experiments."""

    bound: ClassVar[str] = "order: at most span - 1 who came later are served before"
    seed: int = 0
    span: int = 1024

    def __post_init__(self) -> None:
        if self.span < 1:
            raise ConfigError("span", self.span, "a whole number of at least 1")

    def queue(self) -> Shuffled:
        return Shuffled(self.seed, self.span)
