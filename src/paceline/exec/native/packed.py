"""Weights packed into the panels that the kernels multiply by, held once."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref

import torch

from paceline.exec.native.library import FORMATS, Kernels, Linear

PANEL = 16  # columns of a panel
_WORTH_MAPPING = 1 << 20  # bytes
_MAPPING = 32 << 20  # bytes of a mapping that several matrices share
_ALIGNMENT = 64  # bytes
GROUP = 32  # columns of two panels, which are computed together


def packable(inputs: int) -> bool:
    """Whether a linear map of so many inputs can be packed: bfloat16 goes by pairs."""
    return inputs % 2 == 0


class PackedLinear:
    """A linear map in panels. Its rows may come from several matrices, stacked or, panel by panel, in turn."""

    def __init__(
        self,
        kernels: Kernels,
        matrices: Sequence[torch.Tensor],
        bias: torch.Tensor | None = None,
        *,
        paired: bool = False,
        memory: WeightMemory | None = None,
    ) -> None:
        """`matrices` [outputs, inputs] of one dtype; stacked ones but the last must have multiples of 16 rows.

        `paired`: two matrices of the same shape whose panels alternate. Raises ValueError for other shapes.
        """
        first = matrices[0]
        inputs, dtype = first.shape[1], first.dtype
        self._check_rows([matrix.shape[0] for matrix in matrices], paired)
        outputs = sum(matrix.shape[0] for matrix in matrices)
        self.kernels, self.dtype, self.paired = kernels, dtype, paired
        self.inputs, self.outputs = inputs, outputs
        self.panels = take_zeros(memory, -(-outputs // GROUP) * GROUP * inputs, dtype)
        self._put(matrices)
        self._finish(bias, Linear(self.panels.data_ptr(), None, inputs, outputs, None))

    @staticmethod
    def _check_rows(rows: Sequence[int], paired: bool) -> None:
        if any(count % PANEL for count in (rows if paired else rows[:-1])):
            raise ValueError(f"stacked matrices need multiples of {PANEL} rows")

    def _finish(self, bias: torch.Tensor | None, structure: Linear) -> None:
        self._bias = self._packed_bias(bias)
        structure.bias = None if self._bias is None else self._bias.data_ptr()
        self.structure = structure
        self._activation = self.kernels.activation_dtype(self.dtype)

    def _put(self, matrices: Sequence[torch.Tensor]) -> None:
        panel = self.inputs * PANEL * self.dtype.itemsize
        at = self.panels.data_ptr()
        for matrix in matrices:
            whole = matrix.contiguous()
            self.kernels.pack(
                FORMATS[self.dtype],
                whole.data_ptr(),
                whole.shape[0],
                self.inputs,
                at,
                len(matrices) if self.paired else 1,
            )
            at += panel if self.paired else panel * (whole.shape[0] // PANEL)

    def _packed_bias(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        if bias is None:
            return None
        values = bias.float()
        if self.paired:
            values = values.view(2, -1, PANEL).transpose(0, 1).reshape(-1)
        padded = torch.zeros(-(-self.outputs // GROUP) * GROUP)
        padded[: self.outputs] = values
        return padded

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, inputs] -> [T, outputs] in the map's dtype."""
        return self.wide(hidden).to(self.dtype)

    def wide(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, inputs] -> [T, outputs] float32, as summed."""
        hidden = hidden.to(self._activation).contiguous()
        output = torch.empty((hidden.shape[0], self.outputs))
        kernels = self.kernels
        kernels.linear(
            FORMATS[self.dtype],
            byref(self.structure),
            hidden.data_ptr(),
            hidden.shape[0],
            self.paired,
            output.data_ptr(),
            kernels.workspace,
            torch.get_num_threads(),
        )
        return output

    def largest(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest output [T] float32 of each row and its index [T] int64: the lowest of equals; NaN is largest."""
        hidden = hidden.to(self._activation).contiguous()
        values, places = torch.empty(hidden.shape[0]), torch.empty(hidden.shape[0], dtype=torch.int64)
        kernels = self.kernels
        kernels.largest(
            FORMATS[self.dtype],
            byref(self.structure),
            hidden.data_ptr(),
            hidden.shape[0],
            values.data_ptr(),
            places.data_ptr(),
            kernels.workspace,
            torch.get_num_threads(),
        )
        return values, places

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows [T, inputs] of the matrix that was packed, `indices` [T] int64, in the map's dtype."""
        indices = indices.contiguous()
        found = torch.empty((len(indices), self.inputs))
        self.kernels.rows(
            FORMATS[self.dtype],
            self.panels.data_ptr(),
            indices.data_ptr(),
            len(indices),
            self.inputs,
            found.data_ptr(),
        )
        return found.to(self.dtype)


def zeros(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor of zeros that takes no memory until it is written to, on huge pages where the system has them.

    With small pages a step that reads blocks here and there waits for address translation as long as for the data.
    """
    size = elements * dtype.itemsize
    if size < _WORTH_MAPPING:
        return torch.zeros(elements, dtype=dtype)
    return torch.frombuffer(_pages(size), dtype=dtype, count=elements)


def _pages(size: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_ANONYMOUS"):  # Windows
        return mmap.mmap(-1, size)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory seldom gets huge pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def take_zeros(memory: WeightMemory | None, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros out of `memory`, or of their own."""
    return zeros(elements, dtype) if memory is None else memory.zeros(elements, dtype)


class WeightMemory:
    """Memory for many packed matrices, piece by piece out of a few large mappings, so that small ones lie on huge pages
    too. A mapping is given back with the last tensor in it."""

    def __init__(self) -> None:
        self._mapping = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def zeros(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor of zeros."""
        size = elements * dtype.itemsize
        if size > len(self._mapping) - self._used:
            if size >= _MAPPING // 4:
                return zeros(elements, dtype)
            self._mapping, self._used = zeros(_MAPPING, torch.uint8), 0
        piece = self._mapping[self._used : self._used + size].view(dtype)
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return piece
