"""A request with its time, and a list of them with its provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paceline.errors import PacelineError

Parts = tuple[tuple[int, int], ...]
IntArray = NDArray[np.int32]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class WorkloadError(PacelineError):
    """A trace or a workload makes no sense. The message names the file, the line and the mend."""


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One generation that a client asks for.

    The prompt is given in one of three ways: `prompt` (token ids), `text`, or `parts`. A part is (key, length): the
    first `length` tokens of an endless stream that the key names. Two requests share a prefix exactly as far as their
    leading parts have equal keys and lengths (and into the first part that differs only by length). A trace's 512-token
    block hashes are parts of 512; a system prompt is one long part; a conversation is its turns.
    """

    id: str
    arrival: float
    """Seconds from the start of the workload."""
    prompt_len: int
    """Tokens; an estimate where the prompt is text and no tokenizer was at hand."""
    output_len: int
    """Tokens to generate, at least 1."""
    parts: Parts = ()
    prompt: IntArray | None = None
    text: str | None = None
    tenant: str = ""
    session: str = ""
    """Requests of one conversation; turns of a session go one after the other."""
    turn: int = 0
    after: float | None = None
    """Seconds after the end of the session's previous turn; such a request is due at
    max(arrival, end of the previous turn + after)."""
    priority: int = 0
    reply_key: int | None = None
    """The stream that the session's next turn takes this one's answer from."""

    def token_ids(self, vocabulary: int, seed: int = 0, first: int = 0) -> IntArray:
        """The prompt as int32 ids in [first, vocabulary), the same for the same seed in any process.

        Raises WorkloadError where the prompt is text.
        """
        if self.prompt is not None:
            return self.prompt
        if not self.parts:
            raise WorkloadError(f"request {self.id}: its prompt is text, and token ids were asked for; use a tokenizer")
        pieces = [stream_tokens(key, length, vocabulary, seed, first) for key, length in self.parts]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def reply_ids(self, vocabulary: int, seed: int = 0, first: int = 0) -> IntArray:
        """The answer that a next turn's prompt assumes: int32[output_len]."""
        key = self.reply_key if self.reply_key is not None else named_key(f"reply {self.id}")
        return stream_tokens(key, self.output_len, vocabulary, seed, first)

    @property
    def shared_keys(self) -> tuple[int, ...]:
        """Keys of the parts in order: what a router may hash for prefix affinity."""
        return tuple(key for key, _ in self.parts)


@dataclass(slots=True)
class Workload:
    """Requests in order of arrival, where they come from, and what was left out."""

    requests: list[TimedRequest]
    name: str = "workload"
    arrivals: str = ""
    """The arrival process in words; every result names it."""
    timed: bool = True
    """False: the source has lengths only, and arrivals must be made."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason -> rows of the source that were left out. Printed with every result."""
    notes: list[str] = field(default_factory=list)
    source: str = ""
    attribution: str = ""
    block_size: int | None = None

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def duration(self) -> float:
        """Seconds from the first to the last arrival."""
        return self.requests[-1].arrival - self.requests[0].arrival if self.requests else 0.0

    def times(self) -> NDArray[np.float64]:
        return np.array([request.arrival for request in self.requests])

    def with_times(self, times: Sequence[float] | NDArray[np.float64], arrivals: str) -> Workload:
        """The same requests at other times (as many as there are times, at most)."""
        moved = [replace(request, arrival=float(time)) for request, time in zip(self.requests, times, strict=False)]
        return replace(self, requests=moved, arrivals=arrivals, timed=True)

    def scaled(self, factor: float) -> Workload:
        """All times multiplied: a factor of 0.5 doubles the rate."""
        if not factor > 0:
            raise WorkloadError(f"the time scale is {factor}; it must be above 0")
        if factor == 1:
            return self
        return self.with_times(self.times() * factor, f"{self.arrivals}, time x {factor:g}")

    def at_rate(self, rate: float) -> Workload:
        """Times stretched so that the mean rate is `rate` requests per second; bursts keep their shape."""
        if not rate > 0:
            raise WorkloadError(f"the rate is {rate}; it must be above 0")
        if len(self) < 2 or self.duration <= 0:
            raise WorkloadError(f"{self.name}: {len(self)} requests over {self.duration:g} s have no rate to change")
        return self.scaled((len(self) - 1) / self.duration / rate)

    def head(self, count: int | None) -> Workload:
        """The first `count` requests."""
        return self if count is None or count >= len(self) else replace(self, requests=self.requests[:count])

    def describe(self) -> str:
        """One line: how many, how long, what was left out."""
        prompts = sum(request.prompt_len for request in self.requests)
        outputs = sum(request.output_len for request in self.requests)
        count = max(len(self), 1)
        line = f"{self.name}: {len(self)} requests, mean {prompts / count:.0f} tokens in, {outputs / count:.0f} out"
        if any(request.after is not None for request in self.requests):
            line += f", in {len({request.session for request in self.requests})} conversations"
        elif self.timed and self.duration > 0:
            line += f", over {self.duration:.1f} s ({(len(self) - 1) / self.duration:.3g} requests/s)"
        for reason, rows in self.skipped.items():
            line += f"; {rows} left out: {reason}"
        return line


def check(workload: Workload) -> Workload:
    """The same workload; WorkloadError for the first thing in it that makes no sense."""
    last = 0.0
    for number, request in enumerate(workload.requests):
        where = f"{workload.name}, request {number} ({request.id})"
        if not 0 <= request.arrival < float("inf"):
            raise WorkloadError(f"{where}: arrival {request.arrival} s is not a time from 0 on")
        if request.arrival < last:
            raise WorkloadError(f"{where}: arrives at {request.arrival:g} s, before its predecessor at {last:g} s")
        if request.prompt_len < 1 or request.output_len < 1:
            raise WorkloadError(f"{where}: {request.prompt_len} tokens in, {request.output_len} out; both must be >= 1")
        if request.parts and sum(length for _, length in request.parts) != request.prompt_len:
            raise WorkloadError(f"{where}: its parts do not sum to its {request.prompt_len} prompt tokens")
        last = request.arrival
    repeated = [name for name, times in Counter(request.id for request in workload.requests).items() if times > 1]
    if repeated:
        raise WorkloadError(f"{workload.name}: id {repeated[0]!r} is used more than once")
    return workload


def merge(workloads: Iterable[Workload], name: str = "mix") -> Workload:
    """Several workloads at once; ids get the name of their workload in front."""
    parts = list(workloads)
    requests = [replace(r, id=f"{part.name}/{r.id}") for part in parts for r in part.requests]
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    return Workload(
        sorted(requests, key=lambda request: request.arrival),
        name,
        " + ".join(dict.fromkeys(part.arrivals for part in parts)),
        skipped=dict(skipped),
        notes=[note for part in parts for note in part.notes],
    )


def named_key(name: str) -> int:
    """A key for `parts`: 63 bits of a hash of the name, the same in any process (FNV-1a)."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value >> 1


def stream_tokens(key: int, length: int, vocabulary: int, seed: int = 0, first: int = 0) -> IntArray:
    """The first `length` tokens of the stream `key`: int32 in [first, vocabulary), by SplitMix64 of the position."""
    if vocabulary <= first:
        raise WorkloadError(f"a vocabulary of {vocabulary} tokens has no id from {first} on")
    start = (key * 0xD1342543DE82EF95 + seed * 0x2545F4914F6CDD1D + _GOLDEN) & _MASK
    start ^= start >> 29
    values = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64((start * _GOLDEN) & _MASK)
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return np.asarray((values % np.uint64(vocabulary - first)).astype(np.int32) + np.int32(first), np.int32)
