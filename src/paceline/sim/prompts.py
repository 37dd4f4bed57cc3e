"""From a workload's requests to the scheduler's: token ids that share a prefix exactly where the workload says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paceline.core.params import SamplingParams
from paceline.core.request import IntArray, Request, Sequence
from paceline.core.scheduler import Scheduler
from paceline.workload.requests import TimedRequest

_FILLER = 7
_PARAMS: dict[int, SamplingParams] = {}


@dataclass
class SimulatedRequest(Request):
    """A request that knows its row in the run's log."""

    index: int = -1

    @property
    def size(self) -> int:
        """Tokens, prompt and answer."""
        return int(self.prompt.size) + (self.params.max_tokens or 0)


class Prompts:
    """Makes token ids. A stream is told from every other by its first two tokens; the rest of it is filler, which is
    all that a prefix cache can notice of it."""

    def __init__(self) -> None:
        self._filler: IntArray = np.full(4096, _FILLER, np.int32)

    def ids(self, request: TimedRequest) -> IntArray:
        """int32[prompt_len], the same in any process."""
        if request.prompt is not None:
            return request.prompt
        total = request.prompt_len
        if total > self._filler.size:
            self._filler = np.full(2 * total, _FILLER, np.int32)
        ids: IntArray = self._filler[:total].copy()
        if not request.parts:
            ids[:2] = _text_mark(request)[: ids.size]
            return ids
        at = 0
        for key, length in request.parts:
            ids[at] = _mixed(key)
            if length > 1:
                ids[at + 1] = key >> 31 & 0x7FFFFFFF
            at += length
        return ids

    def request(self, timed: TimedRequest, index: int) -> SimulatedRequest:
        """The scheduler's request; it ends after exactly `output_len` tokens."""
        params = _PARAMS.get(timed.output_len)
        if params is None:
            params = SamplingParams(max_tokens=timed.output_len, ignore_eos=True)
            if len(_PARAMS) < 65536:
                _PARAMS[timed.output_len] = params
        return SimulatedRequest(
            id=timed.id,
            prompt=self.ids(timed),
            params=params,
            arrival=timed.arrival,
            priority=timed.priority,
            tenant=timed.tenant or "default",
            seed=index,
            index=index,
        )


def resumable(request: SimulatedRequest, sequence: Sequence, scheduler: Scheduler) -> SimulatedRequest:
    """The request with the tokens its sequence has so far, for a scheduler elsewhere."""
    tokens = sequence.tokens
    if sequence.row >= 0:
        tokens = scheduler.batch.tokens[sequence.row, : scheduler.batch.length[sequence.row]]
    generated = tokens[sequence.prompt_length :].copy()
    return replace(request, resumed={0: generated}) if generated.size else request


def _mixed(key: int) -> int:
    return ((key * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF) >> 33


def _text_mark(request: TimedRequest) -> IntArray:
    """Text has no ids here: requests with the same text share all of it, others nothing."""
    from paceline.workload.requests import named_key

    key = named_key(request.text if request.text is not None else request.id)
    return np.array([_mixed(key), key & 0x7FFFFFFF], np.int32)
