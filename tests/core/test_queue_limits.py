"""Queue limits: who is refused at the door, and when it is told to come back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.core.discipline import Discipline
from paceline.core.disciplines import DISCIPLINES, discipline
from paceline.core.line import Line
from paceline.core.params import SamplingParams
from paceline.core.plan import StepResult
from paceline.core.quotas import Quota, Quotas, Rate
from paceline.core.request import Request
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError, RequestError

SETTINGS = {"num_blocks": 256, "block_size": 4, "max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 64}


class Server:
    """One sequence at a time, which takes so many steps of so many seconds."""

    def __init__(self, row: str = "paceline", **knobs: Any) -> None:
        made = discipline(row).with_knobs(knobs)
        self.scheduler = Scheduler(made.configure(**SETTINGS), made)
        self.now = 0.0
        self.count = 0

    def ask(self, tenant: str = "t", prompt: int = 4, tokens: int = 2) -> None:
        self.count += 1
        ids = np.arange(self.count * 100, self.count * 100 + prompt, dtype=np.int32)
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        self.scheduler.add(Request(f"r{self.count}", ids, params, arrival=self.now, tenant=tenant), self.now)

    def refused(self, **ask: Any) -> RequestError:
        with pytest.raises(RequestError) as caught:
            self.ask(**ask)
        assert caught.value.status == 429 and caught.value.retry_after is not None
        return caught.value

    def step(self, seconds: float = 1.0) -> None:
        plan = self.scheduler.schedule(self.now)
        self.now += seconds
        if plan is not None:
            self.scheduler.complete(StepResult(np.zeros(int(plan.samples.sum()), np.int32)), self.now)
        self.scheduler.check()


def test_so_many_requests_may_wait_whatever_runs() -> None:
    server = Server(max_queued_requests=2)
    server.ask()
    server.step(0.0)
    server.ask()
    server.ask()
    error = server.refused()
    assert error.code == "queue_full" and "2 requests wait, 2 may" in str(error)
    assert server.scheduler.totals.refused == 1
    server.step()
    server.step()
    server.ask()


def test_so_many_prompt_tokens_may_wait_and_one_prompt_always() -> None:
    server = Server(max_queued_tokens=10)
    server.ask(prompt=40)
    assert server.refused(prompt=1).code == "queue_full_of_tokens"
    server.step()
    server.ask(prompt=6)
    server.ask(prompt=4)
    assert "10 prompt tokens wait, 1 more would come, 10 may" in str(server.refused(prompt=1))


def test_a_tenants_limit_is_its_own() -> None:
    server = Server(max_queued_requests_per_tenant=2)
    server.ask()
    server.ask()
    error = server.refused()
    assert error.code == "tenant_queue_full" and "the queue of tenant 't' is full" in str(error)
    server.ask("other")
    server.step()
    server.ask()


def test_the_time_to_come_back_follows_the_measured_rate() -> None:
    """Each request takes 4 seconds, so of a queue one too long somebody has left in about 4."""
    server = Server(max_queued_requests=5)
    for _ in range(5):
        server.ask(tokens=4)
    for _ in range(60):
        server.step()
        while server.scheduler.entrance.queue.requests < 5:
            server.ask(tokens=4)
    assert 3.0 < (server.refused().retry_after or 0) < 5.0
    assert str(server.refused()).endswith(f"try again in {server.refused().retry_after:.1f} s")


def test_the_predicted_wait_is_what_is_then_waited() -> None:
    server = Server(max_queue_wait=30.0)
    admitted = 0
    for _ in range(200):
        try:
            server.ask(tokens=4)
            admitted += 1
        except RequestError as error:
            assert error.code == "queue_too_slow"
        server.step()
    line = server.scheduler.entrance.queue
    assert 5 <= line.requests <= 10  # 30 seconds of 4 each
    predicted = line.wait(server.now)
    begin = server.now
    while line.requests:
        server.step()
    assert predicted == pytest.approx(server.now - begin, rel=0.3)


def test_limits_hold_under_quotas_and_those_over_quota_count_for_their_tenant_only() -> None:
    server = Server(max_queued_requests=2, max_queued_requests_per_tenant=3)
    server.scheduler.set_quotas(Quotas(tenants={"t": Quota(requests=Rate(0.01, 1))}), 0.0)
    for _ in range(3):
        server.ask("t")
    assert server.refused(tenant="t").code == "tenant_queue_full"
    server.ask("other")
    assert server.refused(tenant="other").code == "queue_full"


def test_nobody_is_refused_for_a_wait_that_was_never_measured() -> None:
    server = Server(max_queue_wait=0.001)
    for _ in range(50):
        server.ask()
    server.step(0.0)


def test_a_line_that_stands_still_gets_slower_by_and_by() -> None:
    line = Line()
    for number in range(10):
        line.join(float(number), 10)
        line.leave(float(number) + 0.5, 10, served=True)
    line.join(10.0, 10)
    waits = [line.wait(10.0 + later) or 0.0 for later in (0, 5, 20, 60)]
    assert waits == sorted(waits) and waits[-1] > 10 * waits[0] > 0


@pytest.mark.parametrize("row", DISCIPLINES)
def test_every_discipline_can_have_limits_beside_its_own(row: str) -> None:
    made: Discipline = discipline(row).with_knobs({"max_queued_requests": 1})
    config = made.configure(num_blocks=256, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=32)
    scheduler = Scheduler(config, made)
    scheduler.add(Request("a", np.arange(4, dtype=np.int32)), 0.0)
    with pytest.raises(RequestError, match="1 requests wait, 1 may"):
        scheduler.add(Request("b", np.arange(4, dtype=np.int32)), 0.0)


def test_a_rows_own_limit_says_when_to_come_back_too() -> None:
    server = Server("tgi", max_concurrent_requests=1)
    server.ask(tokens=1)
    assert server.refused().code == "overloaded"
    for _ in range(10):
        server.step()
        server.ask(tokens=1)
    assert server.refused().retry_after == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(("knob", "value"), [("max_queued_requests", -1), ("max_queue_wait", -0.5)])
def test_a_wrong_limit_is_named(knob: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"--{knob.replace('_', '-')}: {value}"):
        discipline("paceline").with_knobs({knob: value})
