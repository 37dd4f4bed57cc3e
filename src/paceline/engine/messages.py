"""What the server process and the engine process say to each other, as msgpack over one socket.

Requests are named by a number that the server process never gives twice, so that nothing an engine still says about an
old request can be taken for news of a later one with the same id. Token ids travel as bytes of int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from paceline.core.params import SamplingParams
from paceline.core.plan import TokenLogprobs
from paceline.core.quotas import Quotas
from paceline.core.request import IntArray, Request


class Message(msgspec.Struct, tag=True, array_like=True):
    """Base of all messages."""


# -- to the engine -------------------------------------------------------------------------------------------------


class Add(Message):
    """Take a request in. `resumed`: tokens so far of each unfinished sequence, taken over from an engine that died."""

    number: int
    request_id: str
    prompt: bytes
    params: SamplingParams
    seed: int
    priority: int = 0
    tenant: str = "default"
    cache_salt: str | None = None
    resumed: dict[int, bytes] | None = None
    queue_timeout: float | None = None
    timeout: float | None = None

    def request(self, arrival: float) -> Request:
        resumed = self.resumed
        return Request(
            id=self.request_id,
            prompt=as_tokens(self.prompt),
            params=self.params,
            arrival=arrival,
            priority=self.priority,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            queue_timeout=self.queue_timeout,
            timeout=self.timeout,
            seed=self.seed,
            resumed=None if resumed is None else {index: as_tokens(data) for index, data in resumed.items()},
        )


class Abort(Message):
    """End all sequences of a request. Not answered."""

    number: int


class Finish(Message):
    """End one sequence, whose text reached a stop string. Not answered."""

    number: int
    index: int


class SetQuotas(Message):
    """What tenants may use from now on. Not answered."""

    quotas: Quotas


class AskStats(Message):
    """Answered by Stats with the same `ticket`."""

    ticket: int


class Explain(Message):
    """Answered by Explained with the same `ticket`. `numbers`: of requests; None: all that are live."""

    ticket: int
    numbers: list[int] | None = None


class Shutdown(Message):
    """End the process now."""


ToEngine = Add | Abort | Finish | SetQuotas | AskStats | Explain | Shutdown


# -- from the engine -----------------------------------------------------------------------------------------------


class Progress(Message):
    """A stage of the start, for people."""

    text: str


class Resolved(Message):
    """The model's files are here: a directory or a .gguf file."""

    source: str


class Ready(Message):
    """The engine takes requests. `info` describes the executor."""

    info: dict[str, Any]


class Failed(Message):
    """The start failed in a way the user can mend. `kind`: "config" (with the setting) or "model"."""

    kind: str
    message: str
    setting: str = ""
    value: str = ""
    allowed: str = ""


class Refused(Message):
    """A request was not taken in."""

    number: int
    message: str
    param: str | None
    code: str | None
    status: int
    retry_after: float | None = None


class SequenceOutput(msgspec.Struct, array_like=True):
    """What a step brought for one sequence. `finish_reason` is a value of FinishReason."""

    number: int
    index: int
    tokens: list[int]
    finish_reason: str | None = None
    stop_token: int | None = None
    logprobs: list[TokenLogprobs] | None = None  # along `tokens`
    cached_tokens: int | None = None  # with the first token only
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # with the first token of sequence 0, when asked for
    error: str | None = None  # what went wrong, or of which of its times it had too little
    queue_seconds: float | None = None  # how long it waited to be started: with the first token, or when it expires


class Account(msgspec.Struct, array_like=True):
    """A sequence has ended: where its time went, as `paceline.core.account.report` has it."""

    number: int
    index: int
    report: dict[str, Any]


class StepOutput(Message):
    """Everything a step brought; `accounts` also of sequences ended by a message."""

    outputs: list[SequenceOutput]
    accounts: list[Account] = []


class Stats(Message):
    """The answer to AskStats."""

    ticket: int
    stats: dict[str, Any]


class Explained(Message):
    """The answer to Explain: number -> index -> report of a live sequence, with `why` it waits."""

    ticket: int
    requests: dict[int, dict[int, dict[str, Any]]]


FromEngine = Progress | Resolved | Ready | Failed | Refused | StepOutput | Stats | Explained

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def as_bytes(tokens: Sequence[int] | IntArray) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def as_tokens(data: bytes) -> IntArray:
    return np.frombuffer(data, np.int32)
