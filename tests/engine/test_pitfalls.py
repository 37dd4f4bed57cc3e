"""Pitfalls are found in what is measured, said once in a while, and counted."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.engine.pitfalls import AGAIN, WINDOW, Pitfalls


class Watch:
    """Pitfalls with a clock of the test's and what they said."""

    def __init__(self, **info: Any) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.it = Pitfalls(lambda: self.now, self.said.append)
        self.it.serves({"order": "fcfs", "enable_prefix_caching": True, **info})

    def window(self, **stats: float) -> list[str]:
        self.now += WINDOW
        return self.it.look({"waiting": 3, **stats})


def test_quiet_traffic_has_none() -> None:
    watch = Watch()
    for _ in range(100):
        watch.it.arrived(range(200))
        watch.it.ended(0.1)
    assert watch.window(preemptions=1, finished=100) == [] and watch.said == []


@pytest.mark.parametrize(("order", "waiting", "found"), [("fcfs", 3, True), ("hrrn", 3, False), ("fcfs", 0, False)])
def test_short_and_long_prompts_under_an_unfair_order(order: str, waiting: int, found: bool) -> None:
    watch = Watch(order=order)
    for index in range(40):
        watch.it.arrived(range(50 if index % 4 else 900))
    assert watch.window(waiting=waiting) == (["mixed_lengths"] if found else [])


@pytest.mark.parametrize("on", [True, False])
def test_long_shared_prompts_without_a_prefix_cache(on: bool) -> None:
    watch = Watch(enable_prefix_caching=on)
    for index in range(40):
        watch.it.arrived([*range(300), index])
    assert watch.window() == ([] if on else ["prefix_cache_off"])
    for index in range(40):
        watch.it.arrived([index, *range(400)])
    assert watch.window() == []


def test_preempting_again_and_again_says_how_much() -> None:
    watch = Watch()
    watch.window(preemptions=100, finished=1000)
    assert watch.window(preemptions=150, finished=1100, recomputed_tokens=4000) == ["thrashing"]
    assert "50 preemptions for 100 requests" in watch.said[0] and "--watermark" in watch.said[0]
    assert watch.window(preemptions=152, finished=1200) == []
    assert watch.window(preemptions=3, finished=10) == []  # another engine, which counts from nothing


def test_a_long_wait_at_the_99th_percentile() -> None:
    watch = Watch()
    for index in range(200):
        watch.it.ended(30.0 if index % 50 == 0 else 0.0)
    assert watch.window() == ["long_wait"]


def test_the_same_is_said_once_per_period_and_counted_always() -> None:
    watch = Watch()
    for _ in range(int(2 * AGAIN / WINDOW)):
        for _ in range(30):
            watch.it.ended(30.0)
        watch.window()
    assert watch.it.counts["long_wait"] == 2 * AGAIN / WINDOW
    assert len(watch.said) == 2
    assert "30.0 s" in watch.it.said["long_wait"]


def test_within_a_window_nothing_is_judged() -> None:
    watch = Watch()
    for _ in range(30):
        watch.it.ended(30.0)
    watch.now = WINDOW / 2
    assert watch.it.look({}) == []
