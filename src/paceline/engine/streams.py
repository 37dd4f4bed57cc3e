"""A request as the server process keeps it: everything needed to give its text out, and to hand it to a new engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from paceline.core.params import SamplingParams
from paceline.core.plan import TokenLogprobs
from paceline.core.request import FinishReason
from paceline.engine import messages
from paceline.engine.detokenizer import Detokenizer
from paceline.engine.outputs import PositionLogprobs, RequestOutput, SequenceDelta, TokenLogprob
from paceline.engine.tokenizer import Tokenizer
from paceline.errors import RequestError


class SequenceStream:
    """One sequence: its tokens so far, its text, and what was not given out yet."""

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, params)
        self._given = 0  # tokens given out
        self._logprobs: list[PositionLogprobs] | None = None if params.logprobs is None else []
        self._end_given = False

    def take(self, output: messages.SequenceOutput) -> bool:
        """Take a step's news in. True when a stop string ended the sequence, which the engine does not know yet."""
        for position, token in enumerate(output.tokens):
            self.tokens.append(token)
            if self._logprobs is not None and output.logprobs is not None:
                self._logprobs.append(
                    decoded_logprobs(output.logprobs[position], self._tokenizer, self._params.logprobs or 0)
                )
            is_last = output.finish_reason is not None and position == len(output.tokens) - 1
            stop_token = is_last and output.finish_reason == "stop"
            if stop_token and not self._params.include_stop_str_in_output:
                continue  # the token that means "stop" is no text
            if self._detokenizer.push(token):
                self._end("stop", self._detokenizer.stop_reason)
                return output.finish_reason is None
        if output.finish_reason is not None:
            self._end(output.finish_reason, output.stop_token)
        return False

    def abort(self) -> None:
        """End it where it is."""
        if self.finish_reason is None:
            self._end("abort", None)

    def _end(self, reason: str, stop_reason: str | int | None) -> None:
        self.finish_reason, self.stop_reason = reason, stop_reason
        self._detokenizer.finish()

    def delta(self) -> SequenceDelta | None:
        """What is new since the last call, None when nothing is."""
        fresh, self._given = self.tokens[self._given :], len(self.tokens)
        text = self._detokenizer.take()
        ends = self.finish_reason is not None and not self._end_given
        if not (fresh or text or ends):
            return None
        logprobs = self._logprobs
        if logprobs is not None:
            self._logprobs = []
        self._end_given = ends
        return SequenceDelta(self.index, text, fresh, logprobs, self.finish_reason, self.stop_reason if ends else None)


class RequestStream:
    """All sequences of a request.

    Attributes:
        number: the request's name between the processes.
        error: what to raise to the reader once everything before it was given out.
    """

    def __init__(
        self,
        number: int,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int,
        tokenizer: Tokenizer,
        *,
        priority: int = 0,
        tenant: str = "default",
        cache_salt: str | None = None,
        queue_timeout: float | None = None,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number = number
        self.request_id = request_id
        self.prompt = list(prompt)
        self.params = params
        self.seed = seed
        self.error: Exception | None = None
        self.sequences = [SequenceStream(index, params, tokenizer) for index in range(params.n)]
        self._tokenizer = tokenizer
        self._priority, self._tenant, self._cache_salt = priority, tenant, cache_salt
        self._queue_timeout, self._timeout = queue_timeout, timeout
        self._clock = clock
        self._sent: float | None = None  # when it was first given to an engine
        self._queue_seconds: float | None = None
        self._expired = ""
        self._cached_tokens: int | None = None
        self._prompt_logprobs: list[PositionLogprobs | None] | None = None
        self._prompt_logprobs_due = params.prompt_logprobs is not None

    @property
    def finished(self) -> bool:
        return self.error is not None or all(stream.finish_reason is not None for stream in self.sequences)

    def outcome(self) -> tuple[str, str]:
        """How it ended, in a word: finished, aborted, expired, refused or failed; and the error, if that says why."""
        if self.error is not None:
            status = getattr(self.error, "status", 500)
            word = "expired" if status == 408 else "refused" if status < 500 else "failed"
            return word, str(self.error)
        reasons = {stream.finish_reason for stream in self.sequences}
        if "expired" in reasons:
            return "expired", self._expired
        return ("aborted" if reasons & {None, "abort"} else "finished"), ""

    def message(self) -> messages.Add:
        """The request as an engine takes it in: fresh, or with the tokens so far of its unfinished sequences."""
        started = any(stream.tokens or stream.finish_reason for stream in self.sequences)
        now = self._clock()
        if self._sent is None:
            self._sent = now
        elapsed = now - self._sent  # what an engine that died took counts

        def left(seconds: float | None) -> float | None:
            return None if seconds is None else max(seconds - elapsed, 0.0)

        resumed = {s.index: messages.as_bytes(s.tokens) for s in self.sequences if s.finish_reason is None}
        return messages.Add(
            number=self.number,
            request_id=self.request_id,
            prompt=np.asarray(self.prompt, np.int32).tobytes(),
            params=self.params,
            seed=self.seed,
            priority=self._priority,
            tenant=self._tenant,
            cache_salt=self._cache_salt,
            resumed=resumed if started else None,
            queue_timeout=None if self._queue_seconds is not None else left(self._queue_timeout),
            timeout=left(self._timeout),
        )

    def take(self, output: messages.SequenceOutput) -> bool:
        """Take a step's news in. True when the engine is to be told that a stop string ended the sequence."""
        stream = self.sequences[output.index]
        if stream.finish_reason is not None:
            return False  # on its way before the engine learned of the end
        if output.queue_seconds is not None and self._queue_seconds is None:
            self._queue_seconds = output.queue_seconds
        if output.finish_reason == FinishReason.EXPIRED.value:
            return self._expire(stream, output)
        if output.error is not None:
            self.error = RequestError(output.error, code="engine_error", status=500)
            return False
        if output.cached_tokens is not None and self._cached_tokens is None:
            self._cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None and self._prompt_logprobs_due:
            self._prompt_logprobs_due = False
            most = self.params.prompt_logprobs or 0
            self._prompt_logprobs = [
                None if entry is None else decoded_logprobs(entry, self._tokenizer, most)
                for entry in output.prompt_logprobs
            ]
        return stream.take(output)

    def _expire(self, stream: SequenceStream, output: messages.SequenceOutput) -> bool:
        """A sequence's time is up. One that started keeps what it has; when nothing did, that is an error."""
        self._expired = output.error or ""
        started = self._queue_seconds is not None or any(other.finish_reason for other in self.sequences)
        if started:
            return stream.take(output)
        self.error = RequestError(self._expired, code="request_expired", status=408)
        return False

    def seconds_left(self) -> float | None:
        """Until its time is up, counted from when it was first sent; None: it may take as long as it does."""
        if self._timeout is None:
            return None
        return self._timeout - (0.0 if self._sent is None else self._clock() - self._sent)

    def expire(self) -> None:
        """Its time is up and no engine has said so."""
        said = f"not done within its {self._timeout:g} seconds; the engine does not answer"
        for stream in self.sequences:
            if stream.finish_reason is None and self.error is None:
                ended = messages.SequenceOutput(self.number, stream.index, [], FinishReason.EXPIRED.value, error=said)
                self._expire(stream, ended)

    def abort(self) -> None:
        """End all unfinished sequences."""
        for stream in self.sequences:
            stream.abort()

    def output(self) -> RequestOutput | None:
        """Everything new since the last call as one item, None when nothing is."""
        deltas = [delta for stream in self.sequences if (delta := stream.delta()) is not None]
        if not deltas:
            return None
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        finished = all(stream.finish_reason is not None for stream in self.sequences)
        return RequestOutput(
            request_id=self.request_id,
            prompt_token_ids=self.prompt,
            sequences=deltas,
            finished=finished,
            cached_tokens=self._cached_tokens or 0,
            generated_tokens=sum(len(stream.tokens) for stream in self.sequences),
            prompt_logprobs=prompt_logprobs,
            queue_seconds=self._queue_seconds,
            expired=self._expired if finished else "",
        )


def decoded_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer, most: int) -> PositionLogprobs:
    """With the tokens as text; at most `most` alternatives."""

    def one(token: int, logprob: float, rank: int) -> TokenLogprob:
        return TokenLogprob(token, tokenizer.token_text(token), tokenizer.token_bytes(token), logprob, rank)

    top = zip(entry.top_ids[:most], entry.top_logprobs[:most], strict=True)
    return PositionLogprobs(
        one(entry.token, entry.logprob, entry.rank),
        [one(token, logprob, rank) for rank, (token, logprob) in enumerate(top, start=1)],
    )
