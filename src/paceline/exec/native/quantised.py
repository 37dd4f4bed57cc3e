"""Weights that stay in few bits, packed for the kernels that multiply by them."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p

import torch

from paceline.exec.native.library import Kernels, Linear
from paceline.exec.native.packed import GROUP, PANEL, PackedLinear, WeightMemory, take_zeros
from paceline.exec.stored import StoredMatrix


class QuantisedLinear(PackedLinear):
    """A linear map over matrices in GGUF's block formats, which may differ. See csrc/quantised.h.

    In float32 and float16 the products are exact: what plain float32 weights of the same values would give. In bfloat16
    the left side is rounded to 8 bits for every 32 numbers, whatever the number of rows.
    """

    def __init__(
        self,
        kernels: Kernels,
        matrices: Sequence[StoredMatrix],
        dtype: torch.dtype,
        bias: torch.Tensor | None = None,
        *,
        paired: bool = False,
        memory: WeightMemory | None = None,
    ) -> None:
        """`dtype`: of what it computes. Otherwise as `PackedLinear`."""
        self._check_rows([matrix.data.shape[0] for matrix in matrices], paired)
        outputs = sum(matrix.data.shape[0] for matrix in matrices)
        self.kernels, self.dtype, self.paired = kernels, dtype, paired
        self.inputs, self.outputs = matrices[0].inputs, outputs
        self.kinds = {matrix.kind for matrix in matrices}
        sizes = [kernels.panel_bytes(matrix.kind, self.inputs) for matrix in matrices]
        counts = [-(-matrix.data.shape[0] // PANEL) for matrix in matrices]
        total = sum(size * count for size, count in zip(sizes, counts, strict=True))
        self.panels = take_zeros(memory, total, torch.uint8)
        self.table = torch.zeros((-(-outputs // GROUP) * GROUP // PANEL, 2), dtype=torch.int64)  # address, format
        begin, first = self.panels.data_ptr(), 0
        for index, (matrix, size, count) in enumerate(zip(matrices, sizes, counts, strict=True)):
            rows = matrix.data.contiguous()
            kernels.pack_quantised(matrix.kind, rows.data_ptr(), len(rows), self.inputs, begin)
            own = self.table[index :: len(matrices)] if paired else self.table[first : first + count]
            own[:count, 0] = begin + torch.arange(count) * size
            own[:count, 1] = matrix.kind
            begin, first = begin + count * size, first + count
        self._finish(bias, Linear(None, None, self.inputs, outputs, self.table.data_ptr()))

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        indices = indices.contiguous()
        found = torch.empty((len(indices), self.inputs))
        self.kernels.quantised_rows(
            self.table.data_ptr(), indices.data_ptr(), len(indices), self.inputs, c_void_p(found.data_ptr())
        )
        return found.to(self.dtype)
