"""The log of requests, and finding the request an engine dies on."""

from __future__ import annotations

from typing import Any

from paceline.engine import messages
from paceline.engine.probation import Probation
from paceline.engine.request_log import RequestLog


def account(number: int, index: int = 0, **seconds: float) -> messages.Account:
    parts = {f"{phase}_seconds": seconds.get(phase, 0.0) for phase in ("queue", "prefill", "decode", "preempted")}
    return messages.Account(number, index, {"state": "finished", **parts})


def log(size: int = 2) -> tuple[RequestLog, list[float]]:
    clock = [0.0]
    return RequestLog(size, lambda: clock[0]), clock


def test_only_the_last_that_ended_are_kept_and_all_live_ones() -> None:
    it, _ = log(2)
    for number in range(5):
        it.open(number, f"r{number}", "t", 0, 4)
    for number in range(4):
        it.close(number, "finished")
    assert [entry.id for entry in it.live()] == ["r4"]
    assert [entry.id for entry in it.ended()] == ["r3", "r2"]
    assert it.find("r1") == [] and it.find("r4")[0].end is None


def test_an_account_may_come_before_or_after_the_end() -> None:
    it, clock = log()
    it.open(1, "a", "t", 0, 4)
    it.note(account(1, queue=1.0, decode=2.0))
    clock[0] = 3.5
    it.close(1, "finished")
    it.note(account(1, 1, queue=0.5))
    it.note(account(9))  # nobody we know
    shown: dict[str, Any] = it.find("a")[0].report(it.now)
    assert [one["index"] for one in shown["sequences"]] == [0, 1]
    assert (shown["total_seconds"], shown["other_seconds"], shown["state"]) == (3.5, 0.5, "finished")


def test_a_live_request_is_where_its_farthest_sequence_is() -> None:
    it, clock = log()
    it.open(1, "a", "t", 0, 4, n=2)
    assert it.find("a")[0].report(it.now)["state"] == "arriving"
    clock[0] = 2.0
    live = {0: {**account(1, queue=1.0).report, "state": "waiting"}, 1: {**account(1).report, "state": "running"}}
    shown = it.find("a")[0].report(it.now, live)
    assert shown["state"] == "running" and shown["total_seconds"] == 2.0


def test_parts_of_several_prompts_are_found_together() -> None:
    it, _ = log(5)
    for number, name in enumerate(("x-0", "x-1", "xy")):
        it.open(number, name, "t", 0, 4)
    it.close(1, "finished")
    assert [entry.id for entry in it.find("x")] == ["x-0", "x-1"]


def test_a_size_of_none_keeps_nothing_that_ended() -> None:
    it, _ = log(0)
    it.open(1, "a", "t", 0, 4)
    it.close(1, "finished")
    assert it.find("a") == []


def test_requests_are_tried_one_at_a_time_and_the_culprit_is_named() -> None:
    it = Probation()
    assert it.begin([1, 2, 3]) == 1 and it.on
    assert it.passed(2) is None  # it ended on its own; the one being tried has not
    it.hold(4)
    assert it.passed(1) == 3
    assert it.end() == 3 and not it.on
    assert it.begin([4]) == 4
    assert it.passed(4) is None and not it.on and it.end() is None
    assert it.begin([]) is None and not it.on
