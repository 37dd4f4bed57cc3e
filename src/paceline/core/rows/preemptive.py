"""Rows that choose anew, every step, who runs."""

from __future__ import annotations

from paceline.core.admissions import KnownTokensFit
from paceline.core.compositions.reselect import Reselect
from paceline.core.discipline import Discipline
from paceline.core.evictions.least_urgent import LeastUrgent
from paceline.core.head_of_line import Stop
from paceline.core.orders.feedback import FeedbackPolicy

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

FASTSERVE = Discipline(
    name="fastserve",
    after="FastServe: skip-join multi-level feedback queue, swap of the lowest level first",
    order="mlfq",
    order_knobs=FeedbackPolicy(demote_to_front=True),
    admission=KnownTokensFit(),
    head_of_line=Stop(),
    composition=Reselect(host_reserve=0.1),
    eviction=LeastUrgent(how="swap"),
    failure_modes=(
        "the level to join rests on what a prompt token is said to take (seconds_per_token), which is not measured",
        "long answers sink to levels that short ones overtake: their tail latency",
        "wants num_host_blocks: without room there, who yields is computed again",
        "who has just sunk goes before those that were on the level (demote_to_front off: behind them)",
        "who is preempted is swapped out at once, and in when it runs: the original keeps it while there is room, "
        "and swaps ahead of demand, out and in",
        "who waited for too long comes to the first level behind those there (promote_to_front: before them, as in the "
        "original)",
    ),
)

ROWS = (RESELECT, FASTSERVE)
