"""Rows that choose anew, every step, who runs."""

from __future__ import annotations

from paceline.core.admissions import KnownTokensFit
from paceline.core.compositions.reselect import Reselect
from paceline.core.discipline import Discipline
from paceline.core.evictions.least_urgent import LeastUrgent
from paceline.core.head_of_line import Stop

RESELECT = Discipline(
    name="reselect",
    after="vllm-ltr's srtf, and preemptive real-time scheduling with --order edf",
    order="srtf",
    admission=KnownTokensFit(),
    head_of_line=Stop(),
    composition=Reselect(),
    eviction=LeastUrgent(),
    failure_modes=(
        "preempts whenever somebody better arrives; what is lost each time is computed again (or set how to swap)",
        "a wrong prediction preempts for nothing",
        "ranks every running sequence in every step in which somebody waits",
    ),
)

ROWS = (RESELECT,)
