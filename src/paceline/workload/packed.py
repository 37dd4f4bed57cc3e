"""Requests as columns, for workloads of millions: 24 bytes each instead of several hundred."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from paceline.workload.timed_request import TimedRequest

Floats = NDArray[np.float64]
Lengths = NDArray[np.int32]
Keys = NDArray[np.int64]


class PackedRequests(Sequence[TimedRequest]):
    """Plain requests: a prompt of one part, nothing but lengths and a time, and ids that count from `first` on.

    Columns [requests]; a `TimedRequest` is made when one is asked for.
    """

    __slots__ = ("arrival", "first", "key", "output_len", "prompt_len")

    def __init__(self, arrival: Floats, prompt_len: Lengths, output_len: Lengths, key: Keys, first: int = 0) -> None:
        self.arrival = arrival  # seconds
        self.prompt_len = prompt_len
        self.output_len = output_len
        self.key = key  # of the prompt's stream
        self.first = first  # id of the first

    def __len__(self) -> int:
        return self.arrival.size

    @overload
    def __getitem__(self, at: int) -> TimedRequest: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[TimedRequest]: ...

    def __getitem__(self, at: int | slice) -> TimedRequest | Sequence[TimedRequest]:
        if isinstance(at, slice):
            start, _, step = at.indices(len(self))
            if step != 1:
                return [self[index] for index in range(len(self))[at]]
            columns = (self.arrival[at], self.prompt_len[at], self.output_len[at], self.key[at])
            return PackedRequests(*columns, self.first + start)
        index = at if at >= 0 else at + len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"request {at} of {len(self)}")
        size = self.prompt_len.item(index)
        parts = ((self.key.item(index), size),)
        arrival, output_len = self.arrival.item(index), self.output_len.item(index)
        return TimedRequest(str(self.first + index), arrival, size, output_len, parts)

    def __iter__(self) -> Iterator[TimedRequest]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def at(self, times: Floats) -> PackedRequests:
        """The same requests at other times (as many as there are times, at most)."""
        count = min(len(self), len(times))
        arrival = np.array(times[:count], np.float64)
        return PackedRequests(arrival, self.prompt_len[:count], self.output_len[:count], self.key[:count], self.first)

    @property
    def sensible(self) -> bool:
        """Times ascend from 0 on, and there is a token on both sides of each."""
        if not len(self):
            return True
        times = self.arrival
        ascend = bool(times[0] >= 0 and times[-1] < np.inf and (times[1:] >= times[:-1]).all())
        return ascend and int(min(self.prompt_len.min(), self.output_len.min())) >= 1

    @property
    def distinct(self) -> bool:
        """No two prompts begin alike."""
        ascending = np.sort(self.key)
        return not bool((ascending[1:] == ascending[:-1]).any())


class Packer:
    """Collects requests, packed as long as all of them are plain."""

    def __init__(self) -> None:
        self._arrival, self._key = array("d"), array("q")
        self._prompt_len, self._output_len = array("i"), array("i")
        self._others: list[TimedRequest] | None = None  # everything, once one was not plain

    def __len__(self) -> int:
        return len(self._arrival) if self._others is None else len(self._others)

    def append(self, request: TimedRequest) -> None:
        if self._others is None and not _plain(request, len(self)):
            self._others = list(self._packed())
        if self._others is not None:
            self._others.append(request)
            return
        self._arrival.append(request.arrival)
        self._prompt_len.append(request.prompt_len)
        self._output_len.append(request.output_len)
        self._key.append(request.parts[0][0])

    def requests(self) -> Sequence[TimedRequest]:
        """All of them; a list where they could not be packed."""
        return self._packed() if self._others is None else self._others

    def _packed(self) -> PackedRequests:
        return PackedRequests(
            np.frombuffer(self._arrival, np.float64),
            np.frombuffer(self._prompt_len, np.int32),
            np.frombuffer(self._output_len, np.int32),
            np.frombuffer(self._key, np.int64),
        )


def pack(requests: Iterable[TimedRequest]) -> Sequence[TimedRequest]:
    """The same requests, as small as may be."""
    packer = Packer()
    for request in requests:
        packer.append(request)
    return packer.requests()


def _plain(request: TimedRequest, index: int) -> bool:
    parts = request.parts
    return (
        len(parts) == 1
        and parts[0][1] == request.prompt_len
        and -(1 << 63) <= parts[0][0] < 1 << 63
        and max(request.prompt_len, request.output_len) < 1 << 31
        and request.prompt is None
        and request.text is None
        and request.after is None
        and not (request.tenant or request.session or request.turn or request.priority)
        and request.id == str(index)
    )
