"""No order lets one wait for ever while others are served, unless it says so, as the original does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.disciplines import discipline
from paceline.core.orders import ORDERS
from paceline.core.params import SamplingParams
from paceline.core.plan import StepResult
from paceline.core.request import Request
from paceline.core.scheduler import Scheduler

NEVER = 300  # steps that stand for ever
WARM = np.arange(1000, 1048, dtype=np.int32)  # what all of the stream begin with


def request(name: str, prompt: Any = 4, output: int = 1, **more: Any) -> Request:
    tokens = np.array(prompt, np.int32) if not isinstance(prompt, int) else np.arange(prompt, dtype=np.int32)
    return Request(id=name, prompt=tokens, params=SamplingParams(max_tokens=output, ignore_eos=True), **more)


class Run:
    """One row, one second a step, and a queue that never runs dry."""

    def __init__(self, order: str, knobs: dict[str, Any], row: str = "paceline", rows: int = 1, **config: Any) -> None:
        settings = {"num_blocks": 256, "block_size": 4, "max_num_seqs": rows, "max_num_batched_tokens": 256}
        chosen = discipline(row, order).with_knobs(knobs)
        self.scheduler = Scheduler(chosen.configure(**{**settings, **config}), chosen)
        self.now = 0.0
        self.started: list[str] = []
        self.work = 0  # prompt tokens of those started

    def add(self, *requests: Request) -> None:
        for one in requests:
            one.arrival = self.now
            self.scheduler.add(one, self.now)

    def step(self) -> None:
        plan = self.scheduler.schedule(self.now)
        decided = self.scheduler.step
        assert decided is not None
        self.now += 1.0
        for sequence in decided.new:
            self.started.append(sequence.id)
            self.work += sequence.prompt_length - decided.cached[sequence.id]
        if plan is not None:
            self.scheduler.complete(StepResult(tokens=np.zeros(int(plan.samples.sum()), np.int32)), self.now)

    def starve(self, victim: Request, stream: Callable[[int], Request], ahead: int = 2) -> int:
        """Steps until the victim starts although one of the stream comes every step; NEVER when it does not."""
        self.add(*(stream(number) for number in range(ahead)), victim)
        for number in range(ahead, ahead + NEVER):
            self.step()
            if victim.id in self.started:
                return number - ahead
            self.add(stream(number))
        return NEVER


def warm(number: int) -> Request:
    return request(f"s{number}", [*WARM, number])


def short(number: int) -> Request:
    return request(f"s{number}", 4, output_hint=1)


COLD = [*range(64)]


def test_every_order_says_what_bounds_the_wait_under_it() -> None:
    for name, policy in ORDERS.items():
        assert policy.bound.split(":")[0] in ("order", "aging", "guard", "fair", "unbounded"), name


@pytest.mark.parametrize("order", ["fcfs", "slot"])
def test_nobody_who_came_later_is_served_before(order: str) -> None:
    assert Run(order, {}).starve(request("victim", COLD), short) == 2


def test_a_long_prompt_goes_in_the_turn_by_arrival_at_the_latest() -> None:
    assert Run("turns", {}).starve(request("victim", COLD), short) <= 4
    assert Run("turns", {"short_turns": 9}).starve(request("victim", COLD), short) > 4


def test_a_level_is_a_wait_of_its_age_at_most() -> None:
    for level in (1, 3):
        waited = Run("priority", {"age": 5.0}).starve(request("victim", 4, priority=level), short)
        assert waited <= level * 5.0 + 2
    assert Run("priority", {}).starve(request("victim", 4, priority=1), short) == NEVER


def test_levels_starve_as_the_original_does() -> None:
    assert Run("levels", {}).starve(request("victim", 4, priority=1), short) == NEVER


@pytest.mark.parametrize("order", ["hrrn", "lpm", "dfs", "dlpm"])
def test_a_cold_prompt_among_warm_ones_is_overdue_after_what_it_found_and_patience(order: str) -> None:
    run = Run(order, {"stretch": 1.0, "patience": 100})
    found = 2 * (WARM.size + 1) + len(COLD)
    assert run.starve(request("victim", COLD), warm) < NEVER
    assert run.work <= found + 100 + WARM.size + 1 + len(COLD)


def test_longest_prefix_first_starves_as_the_original_does() -> None:
    assert Run("lpm", {}).starve(request("victim", COLD), warm) == NEVER


def test_the_response_ratio_alone_lets_a_cold_prompt_through() -> None:
    run = Run("hrrn", {"stretch": 0.0}, max_num_batched_tokens=64)
    assert run.starve(request("victim", COLD), warm) < NEVER


def test_depth_first_without_a_bound_lets_newcomers_in_before() -> None:
    def just_before(number: int) -> Request:
        return request(f"s{number}", [1, 1, 1, 1, number // 100 + 1, number % 100 + 1, 1])

    victim = request("victim", [1, 1, 1, 2])
    assert Run("dfs", {"stretch": 0.0}, block_size=1).starve(victim, just_before) == NEVER
    assert Run("dfs", {"stretch": 2.0, "patience": 64}, block_size=1).starve(victim, just_before) < 60


@pytest.mark.parametrize("order", ["sjf", "srtf"])
def test_a_long_job_goes_first_once_it_was_out_of_so_many_steps(order: str) -> None:
    victim = request("victim", 4, 50, output_hint=50)
    assert Run(order, {"guard": 20}).starve(victim, short) <= 21
    assert Run(order, {"guard": 0}).starve(victim, short) == NEVER


def test_a_long_job_makes_progress_under_srtf_that_preempts() -> None:
    run = Run("srtf", {"guard": 10, "turns": 5}, row="reselect")
    run.add(request("victim", 4, 40, output_hint=40))
    for number in range(NEVER):
        run.add(short(number))
        run.step()
        if "victim" not in run.scheduler._requests:
            break
    assert number <= 40 // 5 * (10 + 5 + 1) + 10


def test_a_distant_deadline_waits_for_its_patience_at_most() -> None:
    def urgent(number: int) -> Request:
        return request(f"s{number}", 4, ttft_target=3.0)

    victim = request("victim", 4, ttft_target=1e6)
    assert Run("edf", {"patience": 25.0}).starve(victim, urgent) <= 26
    assert Run("edf", {"patience": 1e6}).starve(victim, urgent) == NEVER


def test_who_missed_a_deadline_waits_behind_those_who_can_keep_theirs_but_not_for_ever() -> None:
    def urgent(number: int) -> Request:
        return request(f"s{number}", 4, ttft_target=3.0)

    waited = Run("edf", {"patience": 25.0}).starve(request("victim", 4, ttft_target=0.0), urgent)
    assert 3 < waited <= 26


def test_a_low_level_of_feedback_comes_up_after_a_while() -> None:
    knobs = {"base": 1.0, "seconds_per_token": 0.1, "promote_after": 30.0}
    victim = request("victim", COLD)
    assert Run("mlfq", knobs).starve(victim, short) <= 33
    assert Run("mlfq", {**knobs, "promote_after": 0.0}).starve(victim, short) == NEVER


@pytest.mark.parametrize("seed", range(5))
def test_a_random_order_overtakes_within_its_span(seed: int) -> None:
    run = Run("random", {"seed": seed, "span": 8})
    run.starve(request("victim", 4), short)
    assert sum(int(name[1:]) > 2 for name in run.started if name != "victim") <= 8


@pytest.mark.parametrize("order", ["vtc", "dlpm"])
def test_a_tenant_with_one_request_does_not_wait_for_the_flood_of_another(order: str) -> None:
    def flood(number: int) -> Request:
        return request(f"s{number}", [*WARM, number], tenant="loud")

    run = Run(order, {"quantum": 64} if order == "dlpm" else {})
    assert run.starve(request("victim", COLD, tenant="quiet"), flood, ahead=20) < 40


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(1, 12), st.integers(1, 8)), min_size=4, max_size=40
    ),
    lift=st.just(True),
)
def test_counters_of_waiting_tenants_stay_together(data: list[tuple[int, int, int, int]], lift: bool) -> None:
    """Sheng et al., OSDI 2024: their spread is at most U, the larger of w_p * longest prompt and w_q * KV capacity."""
    run = Run("vtc", {"lift": lift}, row="orca", rows=4, num_blocks=12, max_model_len=48)
    spread = max(12 * 1.0, 12 * 4 * 2.0)
    pending = sorted(data)
    for turn in range(400):
        for index, (_, tenant, prompt, output) in enumerate(one for one in pending if one[0] == turn):
            run.add(request(f"{turn}-{index}", prompt, output, tenant=f"t{tenant}"))
        run.step()
        queue: Any = run.scheduler.waiting
        counters = [float(queue.counters[tenant]) for tenant in queue._queues]
        assert not counters or max(counters) - min(counters) <= spread
        if turn > 12 and not run.scheduler.has_work():
            break
    assert not run.scheduler.has_work()


@pytest.mark.parametrize(
    ("order", "knobs"), [("vtc", {}), ("vtc", {"weights": {"t0": 3.0}}), ("dlpm", {"quantum": 32})]
)
@pytest.mark.parametrize("seed", range(4))
def test_two_tenants_that_wait_all_the_time_get_the_same_service(order: str, knobs: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    run = Run(order, knobs, row="orca", rows=4, num_blocks=12, max_model_len=48)
    weight = knobs.get("weights", {}).get("t0", 1.0)
    service = {"t0": 0.0, "t1": 0.0}
    longest, capacity = 12.0, 48 * 2.0
    bound = 2 * (max(longest, capacity) + knobs.get("quantum", 0))
    made = 0
    for _ in range(300):
        waiting = [one.request.tenant for one in run.scheduler.waiting]
        for tenant in ("t0", "t1"):
            for _ in range(waiting.count(tenant), 6):  # more than may start in a step
                # One asks for long answers, the other for long prompts.
                prompt, output = int(random.integers(6, 13)), 1
                if tenant == "t0":
                    prompt, output = 2, int(random.integers(4, 9))
                run.add(request(f"r{made}", prompt, output, tenant=tenant))
                made += 1
        plan = run.scheduler.schedule(run.now)
        assert plan is not None and run.scheduler.step is not None
        for sequence in run.scheduler.step.new:
            service[sequence.request.tenant] += sequence.prompt_length
        for row in plan.rows[plan.samples].tolist():
            service[run.scheduler.batch.occupant[row].request.tenant] += 2.0
        run.now += 1.0
        run.scheduler.complete(StepResult(tokens=np.zeros(int(plan.samples.sum()), np.int32)), run.now)
        assert abs(service["t0"] / weight - service["t1"]) <= bound
    assert min(service.values()) > 300


def feasible(jobs: list[tuple[int, int, int]]) -> bool:
    """Processor demand: in no interval is more due than it is long. Jobs: (arrival, steps, deadline)."""
    return all(
        sum(work for arrival, work, deadline in jobs if arrival >= begin and deadline <= end) <= end - begin
        for begin in {arrival for arrival, _, _ in jobs}
        for end in {deadline for _, _, deadline in jobs}
    )


@settings(max_examples=150, deadline=None)
@given(
    drawn=st.lists(st.tuples(st.integers(0, 10), st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=10),
)
def test_no_deadline_is_missed_where_the_demand_test_says_it_can_be_kept(drawn: list[tuple[int, int, int]]) -> None:
    jobs: list[tuple[int, int, int]] = []
    for arrival, work, slack in drawn:
        job = (arrival, work, arrival + work + slack)
        if feasible([*jobs, job]):
            jobs.append(job)
    run = Run("edf", {"patience": 1e6}, row="reselect")
    ends: dict[str, float] = {}
    for turn in range(80):
        for index, (arrival, work, deadline) in enumerate(jobs):
            if arrival == turn:
                run.add(request(str(index), 1, work, ttft_target=float(deadline - arrival), tpot_target=0.0))
        run.step()
        for index in range(len(jobs)):
            if jobs[index][0] <= turn and not run.scheduler.sequences(str(index)):
                ends.setdefault(str(index), run.now)
    assert len(ends) == len(jobs)
    for index, (_, _, deadline) in enumerate(jobs):
        assert ends[str(index)] <= deadline, jobs
