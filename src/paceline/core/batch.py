"""The running sequences as a struct of arrays, so that a steady step walks no Python objects."""

from __future__ import annotations

from collections import abc
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.request import IntArray, RowArray, Sequence


class Batch:
    """`max_num_seqs` rows; a running sequence has one of them. Columns are int32 [rows] unless said otherwise.

    The two matrices are what an executor reads. They are as large as the limits allow, but memory is only used for
    the pages that were written.
    """

    def __init__(self, rows: int, max_length: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: IntArray = np.empty((rows, max_length), np.int32)  # prompt, then generated
        self.block_table: IntArray = np.zeros((rows, -(-max_length // block_size)), np.int32)
        self.length: IntArray = np.zeros(rows, np.int32)  # known tokens
        self.computed: IntArray = np.zeros(rows, np.int32)  # tokens with K/V, those of the step being run included
        self.held: IntArray = np.zeros(rows, np.int32)  # blocks in the block table
        self.number: IntArray = np.zeros(rows, np.int32)  # order of submission
        self.tenant: IntArray = np.zeros(rows, np.int32)  # index of the tenant
        self.priority: npt.NDArray[np.int64] = np.zeros(rows, np.int64)  # of the Sequence
        self.prompt_length: IntArray = np.zeros(rows, np.int32)
        self.min_length: IntArray = np.zeros(rows, np.int32)  # no stop token counts below this length
        self.max_length: IntArray = np.zeros(rows, np.int32)  # the sequence ends at this length
        self.eos_counts: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)  # end-of-sequence ends it
        self.own_stops: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)  # has stop token ids of its own
        self.done: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)  # has ended, and stays until the whole batch has
        self.occupant: npt.NDArray[np.object_] = np.full(rows, None, object)  # the Sequence of each row
        self.leases: list[Any] = [None] * rows
        self.order: RowArray = np.zeros(0, np.intp)  # occupied rows, in order of admission
        self._vacant = list(range(rows - 1, -1, -1))

    def __len__(self) -> int:
        return int(self.order.size)

    @property
    def full(self) -> bool:
        return not self._vacant

    def enter(self, sequence: Sequence) -> int:
        """Give the sequence a row, with its tokens and limits but no blocks yet."""
        row = self._vacant.pop()
        params = sequence.request.params
        length = int(sequence.tokens.size)
        self.tokens[row, :length] = sequence.tokens
        self.length[row] = length
        self.computed[row] = 0
        self.held[row] = 0
        self.number[row] = sequence.number
        self.tenant[row] = sequence.tenant
        self.priority[row] = sequence.priority
        self.prompt_length[row] = sequence.prompt_length
        self.min_length[row] = sequence.prompt_length + params.min_tokens
        self.max_length[row] = sequence.max_length
        self.eos_counts[row] = not params.ignore_eos
        self.own_stops[row] = bool(params.stop_token_ids)
        self.done[row] = False
        self.occupant[row] = sequence
        self.leases[row] = sequence.lease
        order = np.empty(self.order.size + 1, np.intp)
        order[:-1] = self.order
        order[-1] = row
        self.order = order
        sequence.row = row
        return row

    def seat(self, row: int) -> None:
        """Let the next to enter have this row, which is vacant."""
        self._vacant.remove(row)
        self._vacant.append(row)

    def leave(self, sequence: Sequence) -> None:
        """Take the row back; the sequence keeps a copy of its tokens."""
        row = sequence.row
        sequence.tokens = self.tokens[row, : self.length[row]].copy()
        self.occupant[row] = None
        self.leases[row] = None
        self.order = self.order[self.order != row]
        self._vacant.append(row)
        sequence.row = -1

    def give_blocks(self, row: int, blocks: abc.Sequence[int]) -> None:
        held, count = int(self.held[row]), len(blocks)
        if count == 1:
            self.block_table[row, held] = blocks[0]
        elif count:
            self.block_table[row, held : held + count] = blocks
        self.held[row] = held + count

    def blocks(self, row: int) -> IntArray:
        """The row's block table, as long as it is."""
        view: IntArray = self.block_table[row, : self.held[row]]
        return view
