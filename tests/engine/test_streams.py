"""A request as the server keeps it: merged deltas, and what a new engine is told."""

from __future__ import annotations

import pytest

from paceline.core.params import SamplingParams
from paceline.engine import messages
from paceline.engine.messages import SequenceOutput
from paceline.engine.streams import RequestStream
from paceline.engine.tokenizer import Tokenizer
from paceline.errors import RequestError


def stream(tokenizer: Tokenizer, **params) -> RequestStream:
    return RequestStream(1, "r", [5, 6], SamplingParams(**params), 42, tokenizer, tenant="t", cache_salt="s")


def test_what_a_slow_reader_missed_comes_as_one_item(tokenizer: Tokenizer) -> None:
    request = stream(tokenizer)
    tokens = tokenizer.encode("Hello over there")
    assert request.output() is None
    for token in tokens:
        request.take(SequenceOutput(1, 0, [token]))
    output = request.output()
    assert output is not None
    assert (output.sequences[0].text, output.sequences[0].token_ids) == ("Hello over there", tokens)
    assert request.output() is None


def test_a_new_engine_gets_the_tokens_of_unfinished_sequences_and_the_same_seed(tokenizer: Tokenizer) -> None:
    request = stream(tokenizer, n=3)
    assert request.message().resumed is None
    request.take(SequenceOutput(1, 0, [7, 8]))
    request.take(SequenceOutput(1, 1, [9], finish_reason="length"))
    message = request.message()
    assert message.resumed == {0: messages.as_bytes([7, 8]), 2: b""}
    assert (message.seed, message.tenant, message.cache_salt) == (42, "t", "s")
    assert message.request(0.0).prompt.tolist() == [5, 6]


def test_tokens_after_a_stop_string_are_not_taken(tokenizer: Tokenizer) -> None:
    request = stream(tokenizer, stop=("b",))
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    assert not request.take(SequenceOutput(1, 0, [a]))
    assert request.take(SequenceOutput(1, 0, [b]))  # the engine is to be told
    assert not request.take(SequenceOutput(1, 0, [a]))
    output = request.output()
    assert output is not None and output.finished
    assert (output.sequences[0].text, output.sequences[0].token_ids) == ("a", [a, b])


def test_a_stop_string_that_the_last_token_completes_needs_no_message(tokenizer: Tokenizer) -> None:
    request = stream(tokenizer, stop=("b",))
    assert not request.take(SequenceOutput(1, 0, tokenizer.encode("b"), finish_reason="length"))
    output = request.output()
    assert output is not None
    assert (output.sequences[0].finish_reason, output.sequences[0].stop_reason) == ("stop", "b")


@pytest.mark.parametrize("include, text", [(False, "a"), (True, "ab")])
def test_a_stop_token_is_text_only_when_asked_for(tokenizer: Tokenizer, include: bool, text: str) -> None:
    request = stream(tokenizer, include_stop_str_in_output=include)
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    request.take(SequenceOutput(1, 0, [a]))
    request.take(SequenceOutput(1, 0, [b], finish_reason="stop", stop_token=b))
    output = request.output()
    assert output is not None
    assert (output.sequences[0].text, output.sequences[0].stop_reason) == (text, b)


def test_text_held_back_for_a_stop_string_is_released_at_the_end(tokenizer: Tokenizer) -> None:
    request = stream(tokenizer, stop=("ab!",))
    request.take(SequenceOutput(1, 0, tokenizer.encode("ab")))
    output = request.output()
    assert output is not None and output.sequences[0].text == ""
    request.abort()
    output = request.output()
    assert output is not None and output.finished
    assert (output.sequences[0].text, output.sequences[0].finish_reason) == ("ab", "abort")


def test_an_engine_error_ends_the_request_with_status_500(tokenizer: Tokenizer) -> None:
    request = stream(tokenizer)
    request.take(SequenceOutput(1, 0, [], "error", error="it broke"))
    assert request.finished and isinstance(request.error, RequestError)
    assert (request.error.status, request.error.code) == (500, "engine_error")


def late(started: float | None, index: int = 0) -> SequenceOutput:
    return SequenceOutput(1, index, [], finish_reason="expired", error="timeout: too late", queue_seconds=started)


def test_a_request_that_never_started_in_time_fails_and_one_that_did_keeps_what_it_has(tokenizer: Tokenizer) -> None:
    request = stream(tokenizer)
    request.take(late(None))
    assert isinstance(request.error, RequestError) and request.finished
    assert (request.error.status, request.error.code) == (408, "request_expired")
    request = stream(tokenizer)
    request.take(SequenceOutput(1, 0, tokenizer.encode("Hello"), queue_seconds=0.5))
    request.take(late(0.5))
    output = request.output()
    assert output is not None and output.finished and request.error is None
    assert (output.sequences[0].text, output.sequences[0].finish_reason) == ("Hello", "expired")
    assert (output.expired, output.queue_seconds) == ("timeout: too late", 0.5)


def test_what_other_sequences_said_is_kept_when_one_never_started(tokenizer: Tokenizer) -> None:
    request = stream(tokenizer, n=2)
    request.take(SequenceOutput(1, 0, tokenizer.encode("Hello"), finish_reason="length", queue_seconds=0.1))
    request.take(late(None, index=1))
    output = request.output()
    assert output is not None and output.finished
    assert [delta.finish_reason for delta in output.sequences] == ["length", "expired"]


def test_time_goes_on_while_an_engine_is_started_again(tokenizer: Tokenizer) -> None:
    now = 100.0
    request = RequestStream(
        1, "r", [5], SamplingParams(), 42, tokenizer, queue_timeout=3.0, timeout=10.0, clock=lambda: now
    )
    first = request.message()
    assert (first.queue_timeout, first.timeout) == (3.0, 10.0)
    now = 102.0
    again = request.message().request(0.0)
    assert (again.queue_timeout, again.timeout) == (1.0, 8.0)
    request.take(SequenceOutput(1, 0, [7], queue_seconds=1.0))
    now = 120.0
    last = request.message()
    assert (last.queue_timeout, last.timeout) == (None, 0.0)
