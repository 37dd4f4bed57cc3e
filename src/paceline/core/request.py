"""A request, its sequences, and the life cycle they go through."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.account import Account
from paceline.core.params import SamplingParams

IntArray = npt.NDArray[np.int32]
RowArray = npt.NDArray[np.intp]  # what numpy indexes with several times faster than with any other integers


class SequenceState(enum.Enum):
    """Where a sequence is in its life. Exactly one at any time.

    waiting -> running -> finished, with running -> preempted -> running any number of times, and an abort from any
    state to finished. BLOCKED: a sequence of an `n > 1` request before its first sibling has computed the prompt.
    """

    BLOCKED = "blocked"
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why a sequence ended; the values are the OpenAI API's where it has one."""

    STOP = "stop"  # end-of-sequence, a stop token id, or a stop string
    LENGTH = "length"  # max_tokens or the context is reached
    ABORT = "abort"  # the client left or asked for it
    EXPIRED = "expired"  # it waited, or took, longer than it may; `Sequence.finish_detail` says which
    ERROR = "error"


@dataclass
class Request:
    """What a client sent, as the scheduler sees it. Times are seconds on whatever clock the caller uses."""

    id: str
    prompt: IntArray  # [P] token ids
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival: float = 0.0
    priority: int = 0  # smaller is sooner, as in vLLM
    tenant: str = "default"
    cache_salt: str | None = None  # requests share cached blocks only within one salt
    ttft_target: float | None = None  # seconds from arrival within which the first token is wanted
    tpot_target: float | None = None  # seconds from each token to the next that are wanted
    output_hint: int | None = None  # how many tokens the client expects
    output_length: int | None = None  # how many there will be, where a simulation knows
    queue_timeout: float | None = None  # seconds it may wait to be started for the first time
    timeout: float | None = None  # seconds it may take in all
    seed: int = 0  # `params.seed`, or one drawn by the caller where that is None
    resumed: dict[int, IntArray] | None = None
    """Sequence index -> tokens it had generated, for a request taken over from an engine that died.
    None: a fresh request with sequences 0 to n - 1."""


_GOLDEN = 0x9E3779B97F4A7C15


def sequence_seed(seed: int, index: int) -> int:
    """Seed of sequence `index` of a request: the request's own for 0, well spread for the others (unsigned 64 bit)."""
    return (seed + index * _GOLDEN) & 0xFFFFFFFFFFFFFFFF


def sequence_id(request_id: str, index: int) -> str:
    """Sequence 0 is named like its request."""
    return request_id if index == 0 else f"{request_id}#{index}"


class Sequence:
    """One generation of a request. Mutable; owned by the scheduler."""

    __slots__ = (
        "account",
        "arrival",
        "cached_tokens",
        "content_keys",
        "fetched",
        "finish_detail",
        "finish_reason",
        "first_scheduled",
        "first_token",
        "id",
        "index",
        "kept_blocks",
        "kept_tokens",
        "key",
        "leader",
        "leader_lease",
        "lease",
        "lost_tokens",
        "max_length",
        "namespace",
        "number",
        "overtaken",
        "preemptions",
        "priority",
        "prompt_length",
        "recomputed_tokens",
        "request",
        "row",
        "seed",
        "state",
        "stop_token",
        "submitted",
        "swapped",
        "tenant",
        "tokens",
    )

    def __init__(self, request: Request, index: int, number: int) -> None:
        self.request = request
        self.index = index
        self.id = sequence_id(request.id, index)
        self.number = number  # order of submission
        self.tenant = 0  # index of the request's tenant in `Scheduler.tenants`
        self.priority = request.priority
        self.arrival = request.arrival
        self.seed = sequence_seed(request.seed, index)
        self.state = SequenceState.WAITING
        self.prompt_length = int(request.prompt.size)
        generated = (request.resumed or {}).get(index)
        self.tokens: IntArray = (
            request.prompt if generated is None or not generated.size else np.concatenate([request.prompt, generated])
        )  # all known tokens while not in the batch; stale while running (the batch's matrix has them)
        self.key: bytes | None = None  # `tokens` as bytes, made on the first lookup
        self.content_keys: tuple[bytes | None, list[bytes]] = (None, [])  # of the blocks of a `key`, and that key
        self.fetched = False  # its prefix was read from disk since it last started
        self.namespace = (request.cache_salt or "").encode()
        self.max_length = 0  # most tokens this sequence may ever have, prompt included
        self.row = -1  # row of the batch while running
        self.lease: Any = None
        self.leader: Sequence | None = None  # the sibling whose prompt this one forks
        self.leader_lease: Any = None  # ... as long as it still has this lease
        self.overtaken = 0  # times another was admitted past it
        self.preemptions = 0
        self.kept_tokens = 0  # while preempted by hold or swap: tokens whose K/V are kept
        self.kept_blocks: IntArray | None = None  # while preempted by hold: its block table
        self.swapped: list[int] = []  # while preempted by swap: the host blocks its K/V lie in
        self.lost_tokens = 0  # tokens that had K/V when it was last preempted
        self.recomputed_tokens = 0
        self.cached_tokens = 0  # prompt tokens taken from the cache at the first admission
        self.submitted = 0.0  # when it came through the door
        self.account = Account(0.0)  # where its time goes
        self.finish_reason: FinishReason | None = None
        self.finish_detail = ""  # in words, where the reason alone does not say it
        self.stop_token: int | None = None  # the stop token id that ended it, when one of the request's own did
        self.first_scheduled: float | None = None
        self.first_token: float | None = None

    def __repr__(self) -> str:
        return f"Sequence({self.id!r}, {self.state.value}, {len(self.tokens)} tokens)"


@dataclass
class StepEvents:
    """What became known in one step. Row i of the arrays and the list belong together."""

    sequences: npt.NDArray[np.object_]  # [S] the Sequence each new token belongs to
    tokens: IntArray  # [S] sampled token ids
    sampled: IntArray  # [S] index into StepResult.tokens / .logprobs (a sequence aborted mid-step has no entry here)
    finished: list[Sequence] = field(default_factory=list)  # `finish_reason` says why
