"""Quotas: what a tenant gets, what it does not, and that nobody else notices."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import DISCIPLINES
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.params import SamplingParams
from paceline.core.plan import StepResult
from paceline.core.quota_table import parse_quotas
from paceline.core.quotas import Quota, Quotas, Rate
from paceline.core.request import FinishReason, Request, Sequence
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError, RequestError

CONFIG = SchedulerConfig(num_blocks=1024, block_size=4, max_num_seqs=32, max_num_batched_tokens=512, max_model_len=256)


class Served:
    """A scheduler whose steps take what they are told to, and what started when."""

    def __init__(self, quotas: Quotas | None = None, config: SchedulerConfig = CONFIG, row: Any = "paceline") -> None:
        self.scheduler = Scheduler(config, row)
        if quotas is not None:
            self.scheduler.set_quotas(quotas, 0.0)
        self.started: list[tuple[float, Sequence]] = []
        self.generated: list[tuple[float, str]] = []
        self.count = 0

    def ask(self, now: float, tenant: str = "t", prompt: int = 4, tokens: int = 1, **more: Any) -> str:
        self.count += 1
        name = f"r{self.count}"
        ids = np.arange(self.count * 1000, self.count * 1000 + prompt, dtype=np.int32)
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0, n=more.pop("n", 1))
        self.scheduler.add(Request(name, ids, params, arrival=now, tenant=tenant, **more), now)
        return name

    def step(self, now: float, seconds: float = 0.0) -> list[str]:
        """One step; the requests that started in it."""
        scheduler = self.scheduler
        plan = scheduler.schedule(now)
        assert scheduler.step is not None
        new = list(scheduler.step.new)
        self.started += [(now, sequence) for sequence in new]
        if plan is not None:
            tokens = np.zeros(int(plan.samples.sum()), np.int32)
            events = scheduler.complete(StepResult(tokens), now + seconds)
            self.generated += [(now + seconds, sequence.request.tenant) for sequence in events.sequences]
        scheduler.check()
        return [sequence.id for sequence in new]


def only(**limits: Any) -> Quotas:
    return Quotas(tenants={"t": Quota(**limits)})


def test_requests_a_second_are_paid_when_they_start() -> None:
    served = Served(only(requests=Rate(0.5, 2)))
    names = [served.ask(0.0) for _ in range(4)]
    assert served.step(0.0) == names[:2]
    assert served.scheduler.step is not None and served.scheduler.step.wake is None  # something ran
    assert served.step(1.9) == []
    assert served.scheduler.step.wake == pytest.approx(2.0)
    assert served.step(2.0) == names[2:3]
    assert served.step(4.0) == names[3:]


def test_whoever_is_over_quota_stands_in_nobodys_way() -> None:
    served = Served(only(requests=Rate(0.1, 1)))
    flood = [served.ask(0.0) for _ in range(500)]
    other = served.ask(0.0, "other")
    assert served.step(0.0) == [flood[0], other]
    assert served.step(0.1) == []
    late = served.ask(0.2, "another")
    assert served.step(0.2) == [late]
    why = served.scheduler.why()
    assert why[flood[1]].startswith("quota until 10.0 s, in 9.8 s (tenant t: 0.1 requests a second")
    assert why[flood[2]].endswith(f"behind {flood[1]}")


def test_a_tenant_is_served_in_order_although_a_later_one_is_cheaper() -> None:
    served = Served(only(prompt_tokens=Rate(2, 10)))
    first, dear, cheap = (served.ask(0.0, prompt=size) for size in (6, 9, 1))
    assert served.step(0.0) == [first]
    assert served.step(2.0) == []
    assert served.step(2.5) == [dear]
    assert served.step(3.0) == [cheap]


def test_concurrency_counts_requests_until_their_last_sequence_ends() -> None:
    served = Served(only(concurrency=1))
    first, second = served.ask(0.0, tokens=3, n=2), served.ask(0.0)
    assert served.step(0.0) == [first]
    assert served.scheduler.why()[second] == (
        "quota until another request of tenant t ends or starts (1 requests at a time)"
    )
    served.scheduler.finish(first, FinishReason.STOP, 0.5)
    assert second not in served.step(1.0)
    while served.scheduler.sequences(first):
        assert second not in served.step(2.0)
    assert served.step(3.0) == [second]


def test_output_is_paid_after_it_was_made_and_the_debt_before_the_next() -> None:
    served = Served(only(output_tokens=Rate(2, 4)))
    long, next_one = served.ask(0.0, tokens=10), ""
    served.step(0.0)
    next_one = served.ask(0.0)
    for _ in range(9):
        assert served.step(0.0) in ([], [next_one])
    assert not served.scheduler.sequences(long)
    if next_one in [sequence.id for _, sequence in served.started]:  # there was something left when it came
        next_one = served.ask(0.0)
    # at most 4 + 10 + 1 - 4 tokens of debt at 2 a second
    assert served.step(2.9) == []
    assert served.step(6.0) == [next_one]


def test_those_let_in_wait_again_when_the_output_is_used_up() -> None:
    config = SchedulerConfig(num_blocks=64, block_size=4, max_num_seqs=1, max_num_batched_tokens=64, max_model_len=64)
    served = Served(only(output_tokens=Rate(1, 2)), config)
    first, second = served.ask(0.0, tokens=5), served.ask(0.0)
    assert served.step(0.0) == [first]
    assert served.scheduler.why()[second].startswith("slots")
    for _ in range(4):
        assert served.step(0.0) == []
    assert served.scheduler.why()[second].startswith("quota")
    assert served.step(2.9) == []
    assert served.step(3.1) == [second]


def test_unused_share_goes_to_others_who_ask_for_it() -> None:
    served = Served(Quotas(Quota(requests=Rate(0.01, 1)), {"b": Quota(requests=Rate(0.01, 1), borrow=True)}))
    greedy = [served.ask(0.0, "b") for _ in range(6)]
    modest = [served.ask(0.0, "m") for _ in range(3)]
    assert served.step(0.0) == [greedy[0], modest[0]]  # somebody within quota waits
    assert served.step(0.1) == greedy[1:]  # nobody does: the rest of `b` runs, `m` did not ask for more
    # What was borrowed is no debt.
    assert served.ask(100.1, "b") in served.step(100.1)


def test_borrowers_give_way_to_those_within_quota() -> None:
    config = SchedulerConfig(num_blocks=64, block_size=4, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=64)
    served = Served(Quotas(tenants={"b": Quota(concurrency=1, borrow=True)}), config)
    greedy = [served.ask(0.0, "b", tokens=2) for _ in range(4)]
    assert served.step(0.0) == greedy[:1]
    within = [served.ask(0.0, "w", tokens=2) for _ in range(2)]
    assert served.step(0.1) == within[:1]
    assert served.step(0.2)[0] in (within[1], greedy[1])
    while len(served.started) < 6:
        served.step(1.0)
    order = [sequence.id for _, sequence in served.started]
    assert order.index(within[1]) < order.index(greedy[2])


def test_output_that_was_borrowed_is_not_charged() -> None:
    served = Served(only(output_tokens=Rate(1, 4), concurrency=1, borrow=True))
    paid, borrowed = served.ask(0.0, tokens=2), served.ask(0.0, tokens=60)
    assert served.step(0.0) == [paid]
    assert served.step(0.0) == [borrowed]
    while served.scheduler.has_work():
        served.step(0.0)
    assert served.ask(0.0) in served.step(0.0)


def test_what_the_bucket_can_never_hold_is_refused() -> None:
    served = Served(only(prompt_tokens=Rate(5, 10)))
    with pytest.raises(RequestError, match="never holds more than 10 prompt tokens") as caught:
        served.ask(0.0, prompt=11)
    assert (caught.value.status, caught.value.code) == (400, "quota_too_small")
    assert served.scheduler.totals.refused == 1 and not served.scheduler.has_work()


def test_a_request_taken_over_from_a_dead_engine_goes_on_at_once_and_is_charged() -> None:
    served = Served(only(requests=Rate(0.1, 1)))
    first = served.ask(0.0)
    again = served.ask(0.0, tokens=4, resumed={0: np.array([1, 2], np.int32)})
    assert served.step(0.0) == [first, again]
    next_one = served.ask(0.0)
    assert served.step(19.9) == []  # two were paid for with one
    assert served.step(20.0) == [next_one]


def test_new_limits_hold_at_once_and_debts_stay() -> None:
    served = Served(only(requests=Rate(0.001, 1)))
    names = [served.ask(0.0) for _ in range(4)]
    assert served.step(0.0) == names[:1]
    served.scheduler.set_quotas(only(requests=Rate(1, 2)), 0.0)
    assert served.step(0.5) == []
    assert served.step(1.0) == names[1:2]
    served.scheduler.set_quotas(Quotas(), 1.0)
    assert served.step(1.0) == names[2:]
    served.scheduler.set_quotas(only(prompt_tokens=Rate(1, 100)), 1.0)
    big = served.ask(1.0, prompt=90)
    served.scheduler.set_quotas(only(prompt_tokens=Rate(1, 10)), 1.0)  # less than the one that waits costs
    assert served.step(2.0) == [big]


@pytest.mark.parametrize("seed", range(16))
def test_no_window_sees_more_than_the_bucket_and_what_flowed_in(seed: int) -> None:
    """For every pair of starts: what started between them costs at most burst + rate * time, and never too little."""
    random = Random(seed)
    limits = {
        "a": Quota(requests=Rate(random.uniform(0.2, 3), random.randint(1, 5)), concurrency=random.randint(1, 4)),
        "b": Quota(prompt_tokens=Rate(random.uniform(1, 30), random.randint(20, 60))),
        "c": Quota(output_tokens=Rate(random.uniform(1, 10), random.randint(1, 20))),
    }
    row = random.choice(["paceline", "vllm", "fastgen", "orca"])
    config = DISCIPLINES[row].configure(
        num_blocks=random.choice([40, 400]),
        block_size=4,
        max_num_seqs=random.choice([2, 8]),
        max_num_batched_tokens=64,
        max_model_len=64,
    )
    served = Served(Quotas(tenants=limits), config, row)
    now = 0.0
    for _ in range(200):
        for _ in range(random.choice([0, 0, 0, 1, 5])):
            served.ask(now, random.choice("abcd"), random.randint(1, 20), random.randint(1, 12))
        running = {}
        for sequence in served.scheduler.running():
            running.setdefault(sequence.request.tenant, set()).add(sequence.request.id)
        assert len(running.get("a", ())) <= limits["a"].concurrency
        served.step(now, 0.05)
        now += random.choice([0.05, 0.05, 0.5])
    for tenant, price, rate in (
        ("a", lambda sequence: 1, limits["a"].requests),
        ("b", lambda sequence: sequence.prompt_length, limits["b"].prompt_tokens),
    ):
        starts = [(time, price(one)) for time, one in served.started if one.request.tenant == tenant]
        for first in range(len(starts)):
            total = 0
            for time, cost in starts[first:]:
                total += cost
                assert total <= rate.burst + rate.rate * (time - starts[first][0]) + 1e-3
    output = limits["c"].output_tokens
    made = [time for time, tenant in served.generated if tenant == "c"]
    debt = config.max_num_seqs * 12  # what runs when the bucket is empty may go on
    for first in range(0, len(made), 7):
        for last in range(first, len(made), 7):
            assert last - first <= output.burst + debt + output.rate * (made[last] - made[first]) + 1e-3
    while served.scheduler.has_work():
        served.step(now)
        now += 5.0


@pytest.mark.parametrize("name", DISCIPLINES)
def test_every_discipline_keeps_quotas(name: str) -> None:
    row = DISCIPLINES[name]
    config = row.configure(num_blocks=512, block_size=4, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=64)
    served = Served(only(requests=Rate(1.0, 2)), config, name)
    mine = [served.ask(0.0) for _ in range(5)]
    others = [served.ask(0.0, "other") for _ in range(3)]
    now = 0.0
    while served.scheduler.has_work():
        served.step(now)
        now += 0.25
        assert now < 60
    starts = sorted(time for time, sequence in served.started if sequence.id in mine)
    assert all(time >= number - 1 for number, time in enumerate(starts))
    assert {sequence.id for _, sequence in served.started} >= {*mine, *others}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"requests": 3}, "tenants.x.requests: 3 is not valid; it must be { rate = units a second"),
        ({"requests": {"rate": -1, "burst": 3}}, "tenants.x.requests.rate: -1 is not valid; it must be a number"),
        ({"requests": {"rate": 1, "burst": 0.5}}, "tenants.x.requests.burst: 0.5 is not valid"),
        ({"concurrency": 0}, "tenants.x.concurrency: 0 is not valid; it must be a whole number of at least 1"),
        ({"borrow": "yes"}, "tenants.x.borrow: 'yes' is not valid; it must be true or false"),
        ({"weight": 0}, "tenants.x.weight: 0 is not valid"),
    ],
)  # fmt: skip
def test_a_wrong_limit_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_quotas({}, {"x": table}, "q.toml: ")
    assert str(caught.value).startswith("q.toml: " + message)


def test_a_tenant_has_from_the_default_what_it_does_not_name() -> None:
    quotas = parse_quotas(
        {"concurrency": 4, "borrow": True, "requests": {"rate": 1, "burst": 2}},
        {"x": {"concurrency": 8, "weight": 2, "requests": "unlimited"}},
    )
    assert quotas.of("x") == Quota(concurrency=8, borrow=True)
    assert quotas.of("anybody") == Quota(requests=Rate(1, 2), concurrency=4, borrow=True)
    assert quotas.weights == {"x": 2.0}


@pytest.mark.parametrize("order", ["vtc", "dlpm"])
def test_weights_of_a_new_file_hold_at_once(order: str) -> None:
    config = SchedulerConfig(num_blocks=64, block_size=4, max_num_seqs=1, max_num_batched_tokens=64, max_model_len=64)
    knobs = {"quantum": 16} if order == "dlpm" else {}
    served = Served(None, config, discipline_named("paceline", order).with_knobs(knobs))
    for _ in range(400):
        for tenant in "ab":
            served.ask(0.0, tenant, prompt=8)

    def shares(count: int) -> float:
        first = len(served.started)
        while len(served.started) < first + count:
            served.step(0.0)
        tenants = [sequence.request.tenant for _, sequence in served.started[first:]]
        return tenants.count("a") / tenants.count("b")

    assert shares(120) == pytest.approx(1.0, rel=0.4)
    served.scheduler.set_quotas(Quotas(weights={"a": 3.0}), 0.0)
    assert shares(240) == pytest.approx(3.0, rel=0.4)
