"""Which sampled tokens end their sequences."""

from __future__ import annotations

import numpy as np

from paceline.core.batch import Batch
from paceline.core.plan import BoolArray
from paceline.core.request import IntArray, RowArray


def stopped(batch: Batch, rows: RowArray, tokens: IntArray, length: IntArray, eos: IntArray) -> BoolArray:
    """[S] True where a row, `length` tokens long with the one sampled, stops by end-of-sequence or by its own token.

    A sequence stopped by one of its own is told which.
    """
    free_to_stop = length >= batch.min_length[rows]
    stops = np.zeros(rows.size, np.bool_)
    for token in eos.tolist():
        stops |= tokens == token
    stops &= batch.eos_counts[rows] & free_to_stop
    for index in np.flatnonzero(batch.own_stops[rows] & free_to_stop & ~stops).tolist():
        sequence = batch.occupant[rows[index]]
        if int(tokens[index]) in sequence.request.params.stop_token_ids:
            stops[index] = True
            sequence.stop_token = int(tokens[index])
    return stops
