"""A request with its time, and the tokens its prompt is made of."""

from __future__ import annotations

from dataclasses import dataclass

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
