"""Plans: enough, and not more than enough."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from paceline.sim.capacity import Target, Traffic, trial
from paceline.sim.cluster_size import judged_by, spares
from paceline.sim.hardware import hardware
from paceline.sim.plan_text import latency_rows, sections, throughput_rows, values
from paceline.sim.planner import Plan, plan
from paceline.sim.question import PlanError, Question
from paceline.sim.tuning import tune
from paceline.workload.requests import Workload
from paceline.workload.traces import shipped
from tests.sim.samples import DEPLOYMENT, trace

TARGETS = (Target("ttft", 99.0, 0.5), Target("tpot", 99.0, 0.05))
CASES = {
    "azure2023_conv": (24.0, TARGETS),
    "azure2023_code": (8.0, (Target("ttft", 95.0, 1.0), Target("tpot", 90.0, 0.1))),
    "mooncake_conversation": (2.0, (Target("ttft", 90.0, 8.0), Target("tpot", 90.0, 0.3))),
    "mooncake_arxiv_mixed_93": (4.0, (Target("ttft", 90.0, 8.0), Target("tpot", 90.0, 0.3))),
    "burstgpt1_head400": (24.0, TARGETS),
    "servegen_deepseek-r1_h0-12": (6.0, (Target("ttft", 99.0, 1.0), Target("tpot", 99.0, 0.05))),
}


def question(name: str) -> Question:
    rate, targets = CASES[name]
    requests = 200 if name.startswith("mooncake") else 400
    return Question(Traffic(trace(name, 2000)), (DEPLOYMENT,), targets, rate, trial_requests=requests, what_ifs=False)


@functools.cache
def plan_for(name: str) -> Plan:
    return plan(question(name))


def meets(answer: Plan, replicas: int, seed: int, factor: float = 1.0) -> bool:
    asked = answer.question
    spec = replace(answer.best.spec, times=answer.best.spec.times.scaled(factor))
    traffic = replace(asked.traffic, seed=seed)
    part, rate, count = judged_by(asked, replicas)
    return trial(traffic, spec, asked.targets, rate, count, part, asked.router).meets


def test_every_shipped_trace_is_planned_for() -> None:
    assert sorted(CASES) == shipped()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
class TestEachTrace:
    def test_the_recommended_cluster_meets_the_targets_with_the_seeds_it_was_chosen_by(self, name: str) -> None:
        answer = plan_for(name)
        assert answer.chosen.meets
        assert all(meets(answer, answer.replicas, seed) for seed in (0, 1, 2))

    def test_one_replica_fewer_misses_them(self, name: str) -> None:
        answer = plan_for(name)
        assert answer.replicas == 1 or (answer.one_less is not None and not answer.one_less.meets)

    def test_the_interval_holds_for_steps_that_are_longer_or_shorter(self, name: str) -> None:
        answer = plan_for(name)
        assert answer.low <= answer.replicas <= answer.high
        assert meets(answer, answer.high, 0, 1.1)
        assert meets(answer, answer.low, 0, 0.9)

    def test_littles_law_holds_over_the_run(self, name: str) -> None:
        assert abs(plan_for(name).little.residual) < 0.02

    def test_everything_that_a_plan_should_say_is_said(self, name: str) -> None:
        text = "\n".join(f"{title} {rows}" for title, rows in sections(plan_for(name)))
        for word in (
            "replicas",
            "interval",
            "binding",
            "saturation",
            "preemptions",
            "hits",
            "million",
            "Little",
            "seed",
            "KV capacity",
            "traffic",
            "state",
        ):
            assert word in text
        assert len(latency_rows(plan_for(name))) == len(throughput_rows(plan_for(name))) == 8
        assert values(plan_for(name))["replicas"] == plan_for(name).replicas


def test_targets_that_no_hardware_meets_get_one_message_with_what_is_reached() -> None:
    impossible = replace(question("azure2023_conv"), targets=(Target("tpot", 99.0, 0.001),))
    with pytest.raises(PlanError, match=r"TPOT p99 <= 1 ms is not met even at .* where it is .* ms") as error:
        plan(impossible)
    assert "\n" not in str(error.value)


def test_a_model_that_does_not_fit_is_named() -> None:
    small = replace(DEPLOYMENT, hardware=replace(hardware("l4"), memory_gb=12.0))
    with pytest.raises(PlanError, match=r"llama-3.1-8b bf16 on l4: the weights do not fit"):
        plan(replace(question("azure2023_conv"), deployments=(small,)))


@pytest.mark.slow
def test_the_plan_is_the_same_with_any_number_of_processes() -> None:
    asked = replace(question("burstgpt1_head400"), trial_requests=100, rate=4.0, step_error=0.05)
    one, other = plan(asked, processes=1), plan(asked, processes=2)
    told, again = values(one), values(other)
    for answer in (told, again):
        del answer["provenance"]["made by"]
    assert told == again


@pytest.mark.slow
def test_tuning_finds_knobs_that_carry_at_least_as_much() -> None:
    asked = replace(question("burstgpt1_head400"), trial_requests=100)
    ranked = tune(asked, 1, disciplines=("paceline", "vllm"))
    rates = [rate for _, _, rate in ranked]
    given = next(rate for knobs, _, rate in ranked if knobs == asked.knobs)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] >= given > 0


def test_spares_keep_enough_replicas_up() -> None:
    asked = replace(question("burstgpt1_head400"), availability=0.9999, replica_availability=0.9)
    assert spares(3, replace(asked, availability=0.0)) == 0
    assert spares(3, replace(asked, availability=0.9)) == 1  # 0.9 ** 4 + 4 * 0.1 * 0.9 ** 3 = 0.948
    assert spares(3, asked) == 5


def test_another_seed_begins_the_trace_elsewhere_at_the_same_rate() -> None:
    workload: Workload = trace("azure2023_conv", 500)
    one, other = Traffic(workload).at(5.0, 500), Traffic(workload, seed=1).at(5.0, 500)
    assert [r.prompt_len for r in one.requests] != [r.prompt_len for r in other.requests]
    assert sorted(r.prompt_len for r in one.requests) == sorted(r.prompt_len for r in other.requests)
    assert one.duration == pytest.approx(other.duration)
