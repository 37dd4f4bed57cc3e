"""K/V blocks in host memory, and the copies between them and the device's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


class HostBlocks:
    """`num_blocks` blocks. One lies in one piece, [block_bytes] uint8 with the K/V of all layers, so that it moves over
    the bus and to a file at once.

    For any attention whose K/V tensors have the block as their first dimension. On CUDA the memory is pinned and
    copies to the host run beside the step on a stream of their own; `wait` comes before anybody looks at them.
    """

    def __init__(self, tensors: list[torch.Tensor], num_blocks: int) -> None:
        """`tensors`: [device blocks, ...] each, the attention's own, by layer; their memory is used, not copied."""
        self.device = tensors[0].device
        self.tensors = [tensor.reshape(len(tensor), -1).view(torch.uint8) for tensor in tensors]
        for flat, tensor in zip(self.tensors, tensors, strict=True):
            assert flat.data_ptr() == tensor.data_ptr(), "K/V tensors must be contiguous"
        self.ends = np.cumsum([flat.shape[1] for flat in self.tensors]).tolist()
        self.block_bytes: int = self.ends[-1]
        self.num_blocks = num_blocks
        self._cuda = self.device.type == "cuda"
        if self._cuda:
            self.blocks = torch.empty((num_blocks, self.block_bytes), dtype=torch.uint8, pin_memory=True)
            self._stream = torch.cuda.Stream(self.device)
            self._events: list[tuple[torch.cuda.Event, torch.cuda.Event, int]] = []
        else:
            # numpy's zeros are pages the system hands out on first touch.
            self.blocks = torch.from_numpy(np.zeros((num_blocks, self.block_bytes), np.uint8))
        self.array: Bytes = self.blocks.numpy()

    def swap_out(self, moves: IntArray) -> tuple[int, float]:
        """[C, 2] (device block, host block). (blocks, seconds) of copies that have ended, perhaps of earlier calls."""
        if self._cuda:
            return self._swap_out_cuda(moves)
        begin = time.perf_counter()
        source, destination = moves[:, 0], moves[:, 1]
        for first, end, flat in self._parts():
            self.array[destination, first:end] = flat.numpy()[source]
        return len(moves), time.perf_counter() - begin

    def swap_in(self, moves: IntArray) -> tuple[int, float]:
        """[C, 2] (host block, device block). (blocks, seconds)."""
        begin = time.perf_counter()
        if self._cuda:
            self._swap_in_cuda(moves)
            torch.cuda.current_stream(self.device).synchronize()  # its time is what decides whether loading pays
        else:
            source, destination = moves[:, 0], moves[:, 1]
            for first, end, flat in self._parts():
                flat.numpy()[destination] = self.array[source, first:end]
        return len(moves), time.perf_counter() - begin

    def wait(self) -> None:
        """All copies to the host have arrived."""
        if self._cuda:
            self._stream.synchronize()

    def _parts(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Where each tensor's share of a block begins and ends."""
        return zip([0, *self.ends[:-1]], self.ends, self.tensors, strict=True)

    # -- CUDA -------------------------------------------------------------------------------------------------------

    def _swap_out_cuda(self, moves: IntArray) -> tuple[int, float]:
        """Gather on the device, in order with the step's own work; then copy while the step goes on."""
        source = torch.from_numpy(moves[:, 0].astype(np.int64)).to(self.device)
        staged = torch.empty((len(moves), self.block_bytes), dtype=torch.uint8, device=self.device)
        for first, end, flat in self._parts():
            staged[:, first:end] = flat.index_select(0, source)
        begin, finish = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            begin.record()
            for at, host, count in _runs(moves[:, 1]):
                self.blocks[host : host + count].copy_(staged[at : at + count], non_blocking=True)
            finish.record()
        staged.record_stream(self._stream)
        self._events.append((begin, finish, len(moves)))
        blocks, seconds = 0, 0.0
        while self._events and self._events[0][1].query():
            begin, finish, count = self._events.pop(0)
            blocks, seconds = blocks + count, seconds + begin.elapsed_time(finish) / 1000
        return blocks, seconds

    def _swap_in_cuda(self, moves: IntArray) -> None:
        self.wait()
        staged = torch.empty((len(moves), self.block_bytes), dtype=torch.uint8, device=self.device)
        for at, host, count in _runs(moves[:, 0]):
            staged[at : at + count].copy_(self.blocks[host : host + count], non_blocking=True)
        destination = torch.from_numpy(moves[:, 1].astype(np.int64)).to(self.device)
        for first, end, flat in self._parts():
            flat.index_copy_(0, destination, staged[:, first:end])


def _runs(blocks: npt.NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """(index, first block, count) of each run of consecutive blocks."""
    edges = np.flatnonzero(np.diff(blocks) != 1) + 1
    for first, end in zip([0, *edges.tolist()], [*edges.tolist(), len(blocks)], strict=True):
        yield first, int(blocks[first]), end - first
