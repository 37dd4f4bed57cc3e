"""By the number a sequence was given at the door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.core.orders.heap import HeapQueue
from paceline.core.request import Sequence


class Slot(HeapQueue):
    def key(self, sequence: Sequence) -> tuple[Any, ...]:
        return (sequence.number,)


@dataclass(frozen=True)
class SlotPolicy:
    """By order of submission, whatever happened since. For llama.cpp, whose slots are filled as tasks arrive."""

    bound: ClassVar[str] = "order: nobody who came later is served before"

    def queue(self) -> Slot:
        return Slot()
