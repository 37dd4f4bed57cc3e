"""What is refused on arrival, with the numbers."""

from __future__ import annotations

import pytest

from paceline.errors import RequestError
from tests.core.asks import Ask
from tests.core.small import tokens, world


@pytest.mark.parametrize(
    ("ask", "settings", "message"),
    [
        (Ask("a", ()), {}, "the prompt is empty"),
        (Ask("a", tokens(1, 64)), {}, "the prompt has 64 tokens, but the context holds 64"),
        (
            Ask("a", tokens(1, 10), max_tokens=30),
            {"num_blocks": 9},
            "10 prompt tokens and 30 to generate need 10 KV blocks",
        ),
        (Ask("a", tokens(1, 10), max_tokens=30), {"num_blocks": 9}, "of 4 tokens, but there are 9 in all; shorten"),
        (Ask("a", tokens(1, 41), max_tokens=None), {"num_blocks": 10}, "41 prompt tokens and 0 to generate need 11"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(ask: Ask, settings: dict[str, int], message: str) -> None:
    w = world(**settings)
    with pytest.raises(RequestError, match=message) as caught:
        w.scheduler.add(w.request(ask), 0.0)
    assert caught.value.status == 400 and caught.value.param
    assert not w.scheduler.has_work() and w.scheduler.schedule(0.0) is None


def test_what_just_fits_is_taken_and_finishes() -> None:
    w = world(num_blocks=10)
    w.add(Ask("a", tokens(1, 10), max_tokens=31))
    w.drain()
    assert w.ended["a"].tokens.size == 41


def test_the_last_place_of_the_context_is_for_a_generated_token() -> None:
    w = world()
    w.add(Ask("a", tokens(1, 63), max_tokens=40))
    w.drain()
    assert w.ended["a"].tokens.size == 64


def test_an_id_in_use_is_refused_until_it_ended() -> None:
    w = world()
    w.add(Ask("a", (1, 2), max_tokens=1))
    with pytest.raises(RequestError, match="'a' is already in use"):
        w.scheduler.add(w.request(Ask("a", (3,))), 0.0)
    w.drain_keeping_cache()
    assert w.add(Ask("a", (3,)))
    w.drain()


@pytest.mark.parametrize(("first", "second"), [(("r", 2), ("r#1", 1)), (("r#1", 1), ("r", 2))])
def test_an_id_that_is_the_name_of_a_live_sequence_is_refused(first: tuple[str, int], second: tuple[str, int]) -> None:
    w = world()
    w.add(Ask(first[0], (1, 2), n=first[1]))
    with pytest.raises(RequestError, match="'r#1' is already in use"):
        w.scheduler.add(w.request(Ask(second[0], (3,), n=second[1])), 0.0)
    assert w.scheduler.num_waiting == first[1]
    w.drain()


def test_a_name_that_only_looks_like_a_sequence_of_another_request_is_taken() -> None:
    w = world()
    w.add(Ask("r", (1, 2), n=2))
    assert w.add(Ask("r#2", (3,)))
    w.drain()
