"""Matrices in the few bits a file stores them in, or brought to them here. Without them, weights are plain tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch

from paceline.exec.native import Kernels
from paceline.exec.weights import Weights

Q4_0, Q4_1, Q8_0, Q4_K, Q6_K = 2, 3, 8, 12, 14  # GGUF's numbers, in csrc/quantised.h too
NAMES = {Q4_0: "Q4_0", Q4_1: "Q4_1", Q8_0: "Q8_0", Q4_K: "Q4_K", Q6_K: "Q6_K"}
_BLOCK = 32
_ROWS_AT_ONCE = 4096


class StoredMatrix(NamedTuple):
    """A matrix in one of GGUF's block formats."""

    kind: int  # GGUF's number of the format
    data: torch.Tensor  # [outputs, bytes of a row] uint8
    inputs: int


class QuantisedWeights:
    """A checkpoint whose matrices are brought to 8 or 4 bits as they are read. See `Weights`.

    int8: GGUF's Q8_0, 32 numbers of a row share a scale. int4: Q4_1, they share a scale and a minimum, found by least
    squares; embedding and output projection stay at int8. Norms, biases and rows of a length that is no multiple of 32
    stay as they are.
    """

    def __init__(self, weights: Weights, scheme: str, kernels: Kernels) -> None:
        self._weights, self._kernels = weights, kernels
        self._kind = Q8_0 if scheme == "int8" else Q4_1

    def names(self) -> set[str]:
        return self._weights.names()

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._weights.tensor(name, shape)

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredMatrix | None:
        if len(shape) != 2 or shape[1] % _BLOCK:
            return None
        kind = Q8_0 if name in ("model.embed_tokens.weight", "lm_head.weight") else self._kind
        return quantise(self._kernels, self.tensor(name, shape), kind)


def quantise(kernels: Kernels, matrix: torch.Tensor, kind: int) -> StoredMatrix:
    """[outputs, inputs] to Q8_0 or Q4_1; inputs must be a multiple of 32."""
    outputs, inputs = matrix.shape
    data = torch.empty((outputs, kernels.file_row_bytes(kind, inputs)), dtype=torch.uint8)
    for first in range(0, outputs, _ROWS_AT_ONCE):
        rows = matrix[first : first + _ROWS_AT_ONCE].float().contiguous()
        kernels.quantise(
            kind,
            rows.data_ptr(),
            len(rows),
            inputs,
            data[first:].data_ptr(),
            kernels.workspace,
            torch.get_num_threads(),
        )
    return StoredMatrix(kind, data, inputs)
