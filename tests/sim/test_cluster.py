"""Clusters: routing, faults, conversations, and that nothing is lost."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.sim.capacity import whole_window
from paceline.sim.cluster import DIES, RETURNS, SLOWS, Fault, Run, simulate
from paceline.sim.router import ROUTERS, router
from paceline.workload.metrics import little
from paceline.workload.records import Outcome
from paceline.workload.requests import TimedRequest, Workload
from tests.sim.samples import azure, shared_prefixes, short, spec, trace


def all_well(run: Run) -> bool:
    return bool((run.log.outcome == Outcome.OK).all())


@pytest.mark.parametrize("name", ROUTERS)
def test_under_every_router_every_request_gets_all_its_tokens(name: str) -> None:
    load = azure(400, rate=60.0)
    run = simulate(load, spec(), 4, router(name, seed=1))
    assert all_well(run)
    assert run.log.tokens.tolist() == [request.output_len for request in load.requests]
    assert set(run.log.replica.tolist()) == {0, 1, 2, 3}
    assert abs(little(run.records, whole_window(run)).residual) < 0.02


def test_the_least_loaded_replica_gives_a_shorter_tail_than_taking_turns() -> None:
    load = azure(1200, rate=60.0)
    turns, least = (simulate(load, spec(), 4, router(name)) for name in ("round-robin", "least-load"))
    assert np.percentile(least.records.ttft, 99) <= np.percentile(turns.records.ttft, 99)


def test_prefix_affinity_finds_more_in_the_cache_than_taking_turns() -> None:
    load = shared_prefixes(600, rate=200.0)
    turns, affine = (simulate(load, spec(), 4, router(name)) for name in ("round-robin", "prefix"))
    assert affine.hit_rate > turns.hit_rate + 0.02
    assert np.bincount(affine.log.replica, minlength=4).max() < 0.6 * 600


def test_a_conversation_stays_on_its_replica_and_its_turns_wait_for_each_other() -> None:
    requests = [
        TimedRequest(
            f"{talk}-{turn}", 0.1 * talk, 50 * (turn + 1), 20, session=f"talk {talk}", turn=turn,
            after=0.5 if turn else None, parts=tuple((100 * talk + part, 50) for part in range(turn + 1)),
        )
        for talk in range(6)
        for turn in range(4)
    ]  # fmt: skip
    load = Workload(sorted(requests, key=lambda one: one.arrival), "talks", "made")
    run = simulate(load, spec(), 3, router("session"))
    assert all_well(run)
    for talk in range(6):
        rows = [index for index, one in enumerate(load.requests) if one.session == f"talk {talk}"]
        assert len(set(run.log.replica[rows].tolist())) == 1
        for before, after in itertools.pairwise(rows):
            assert run.log.scheduled[after] == pytest.approx(run.log.last[before] + 0.5)


def test_the_requests_of_a_replica_that_dies_go_on_elsewhere_with_their_tokens() -> None:
    load = short(azure(300, rate=40.0), 2000, 300)
    fault = Fault(float(load.requests[150].arrival), 1, DIES)
    run, healthy = simulate(load, spec(), 3, faults=[fault]), simulate(load, spec(), 3)
    assert all_well(run)
    assert run.log.tokens.tolist() == [request.output_len for request in load.requests]
    moved = (run.log.replica != healthy.log.replica) & (run.log.scheduled < fault.at)
    assert moved.any()
    assert (run.log.first[moved] < fault.at).any(), "some had tokens already, and kept them"
    assert not (run.log.replica[run.log.scheduled > fault.at] == 1).any()


def test_a_replica_that_returns_is_used_again_and_one_that_slows_is_felt() -> None:
    load = azure(300, rate=40.0)
    at = float(load.requests[100].arrival)
    back = simulate(load, spec(), 2, router("least-load"), [Fault(at, 1), Fault(at + 1.0, 1, RETURNS)])
    assert all_well(back)
    assert (back.log.replica[back.log.scheduled > at + 1.0] == 1).any()
    slow = simulate(load, spec(), 2, router("round-robin"), [Fault(at, 0, SLOWS, 3.0)])
    late = slow.log.scheduled > at
    tpot = slow.records.tpot
    first, second = late & (slow.log.replica == 0), late & (slow.log.replica == 1)
    assert np.nanmean(tpot[first]) > 1.5 * np.nanmean(tpot[second])


def test_without_any_replica_requests_wait_and_what_never_ran_is_counted() -> None:
    load = azure(40, rate=20.0)
    run = simulate(load, spec(), 1, faults=[Fault(0.5, 0)])
    lost = int((run.log.outcome == Outcome.INCOMPLETE).sum())
    assert lost > 0 and any("no replica was left alive" in note for note in run.notes)
    assert lost + int((run.log.outcome == Outcome.OK).sum()) == 40


def test_requests_too_long_for_the_replica_are_counted_not_dropped() -> None:
    load = trace("mooncake_conversation", 40)
    run = simulate(load, spec(max_model_len=16384))
    too_long = sum(one.prompt_len + 1 > 16384 for one in load.requests)
    assert too_long and int((run.log.outcome == Outcome.ERROR).sum()) == too_long
    assert any("requests:" in note and "context" in note for note in run.notes)


def test_the_answer_is_the_same_in_another_process() -> None:
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.sim.samples import *\n"
        "from paceline.sim.cluster import simulate, Fault\n"
        "from paceline.sim.router import router\n"
        "import hashlib\n"
        "run = simulate(shared_prefixes(200), spec(), 3, router('prefix'), [Fault(1.0, 2)])\n"
        "two = simulate(azure(200, rate=50.0), spec(), 3, router('power-of-two', 5))\n"
        "print(hashlib.sha256(run.log.last.tobytes() + two.log.last.tobytes()).hexdigest())\n"
    )
    digests = set()
    for seed in ("0", "7"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_faults_and_routers_that_make_no_sense_are_named() -> None:
    with pytest.raises(ConfigError, match="--router"):
        router("random")
    with pytest.raises(ConfigError, match="fault"):
        Fault(1.0, 0, "explodes")
    with pytest.raises(ConfigError, match="from 0 to 1"):
        simulate(azure(2), spec(), 2, faults=[Fault(1.0, 2)])
    with pytest.raises(ConfigError, match="--replicas"):
        simulate(azure(2), spec(), 0)


def test_the_commands_import_no_torch(tmp_path: object) -> None:
    code = (
        "import sys\n"
        "from paceline.cli.app import run\n"
        f"assert run(['simulate', '--num-prompts', '20', '--result', r'{tmp_path}/run.json']) == 0\n"
        f"assert run(['plan', '--num-prompts', '200', '--rate', '5', '--ttft-p99', '2s', '--no-what-if', '--quiet',"
        f" '--trial-requests', '100', '--result', r'{tmp_path}/plan.json']) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'a model library was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    with open(f"{tmp_path}/run.json") as file:
        found = json.load(file)
    assert found["completed"] == 20 and found["backend"] == "simulation"
    with open(f"{tmp_path}/plan.json") as file:
        assert json.load(file)["replicas"] >= 1
