"""Which running rows are in which phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paceline.core.request import RowArray

if TYPE_CHECKING:
    from paceline.core.batch import Batch


def by_phase(batch: Batch, rows: RowArray) -> tuple[RowArray, RowArray]:
    """(rows that decode, rows with unfinished prompts), each in the order given. Before the step's tokens are dealt."""
    length = batch.length[rows]
    prompts = (length - batch.computed[rows] > 1) | (length == batch.prompt_length[rows])
    if not prompts.any():
        return rows, rows[:0]
    return rows[~prompts], rows[prompts]


def by_arrival(batch: Batch, rows: RowArray) -> RowArray:
    """The rows in order of submission, whatever the order of admission was."""
    numbers = batch.number[rows]
    if (numbers[1:] >= numbers[:-1]).all():
        return rows
    return rows[np.argsort(numbers, kind="stable")]


def still_running(batch: Batch, rows: RowArray) -> RowArray:
    """Those of the rows whose sequences were not preempted meanwhile."""
    return rows[np.array([occupant is not None for occupant in batch.occupant[rows]], np.bool_)]
