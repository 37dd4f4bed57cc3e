"""The classic claims for continuous batching and shared prefixes, by numbers that need no machine."""

from __future__ import annotations

import numpy as np

from paceline.core.plan import StepPlan
from paceline.sim.cluster import ReplicaSpec, Run, simulate
from paceline.sim.replica import Replica
from paceline.workload.arrivals import AllAtOnce
from paceline.workload.requests import TimedRequest, Workload
from paceline.workload.synthetic import Kind, Lengths, Synthetic
from tests.sim.samples import spec

SLOTS, SHORT, LONG = 8, 50, 200


def batches(count: int) -> Workload:
    """All at once: of every 8 requests 7 want 50 tokens and one wants 200."""
    requests = [
        TimedRequest(str(i), 0.0, 20, LONG if i % SLOTS == SLOTS - 1 else SHORT, parts=((i + 1, 20),))
        for i in range(SLOTS * count)
    ]
    return Workload(requests, "seven of eight are short", "all at once")


def slots_used(workload: Workload, name: str) -> np.ndarray:
    """Of each step: how many of the 8 slots got a token that somebody wanted."""
    used = []

    def watch(replica: Replica, plan: StepPlan, start: float) -> None:
        used.append(int(np.count_nonzero(plan.samples)))

    done = simulate(workload, spec(name, max_num_seqs=SLOTS, max_model_len=256), watch=watch)
    assert sum(used) == done.counters["generation_tokens"] == sum(one.output_len for one in workload.requests)
    return np.array(used)


def test_static_batches_waste_two_thirds_of_their_slots() -> None:
    used = slots_used(batches(3), "static")
    assert used.size == 3 * LONG  # a batch lasts as long as its longest answer
    tail = used[SHORT:LONG]
    assert 1 - tail.mean() / SLOTS == 0.875
    assert round(1 - used.mean() / SLOTS, 2) == 0.66


def test_slots_are_taken_again_at_once_under_iteration_level_scheduling() -> None:
    static, orca = (slots_used(batches(8), name) for name in ("static", "orca"))
    assert static.size > 2.2 * orca.size
    full = orca[:-LONG]  # until nobody is left to start
    assert full.mean() > 0.99 * SLOTS


def rate(workload: Workload, replica: ReplicaSpec) -> float:
    done: Run = simulate(workload, replica)
    return sum(one.output_len for one in workload.requests) / done.end


def test_continuous_batching_gives_several_times_the_output_on_mixed_lengths() -> None:
    mixed = Synthetic(
        (
            Kind(Lengths(64, 0.5), Lengths(50, 0.9), weight=0.875),
            Kind(Lengths(64, 0.5), Lengths(600, 0.5), weight=0.125),
        ),
        AllAtOnce(),
    ).workload(400, seed=5)
    settings = {"max_num_seqs": 64, "max_model_len": 2048, "max_num_batched_tokens": 32768}  # a batch in one step
    static, paceline = rate(mixed, spec("static", **settings)), rate(mixed, spec("paceline", **settings))
    assert paceline > 3 * static


def test_shared_prefixes_give_two_to_five_times_the_output() -> None:
    kind = Kind(Lengths(100, 0.5), Lengths(32, 0.5), prefix=1500, prefixes=4)
    shared = Synthetic((kind,), AllAtOnce()).workload(400, seed=6)
    with_cache, without = (rate(shared, spec("paceline", enable_prefix_caching=on)) for on in (True, False))
    assert 2 < with_cache / without < 8


def test_a_short_answer_of_a_static_batch_ends_with_its_longest() -> None:
    done = simulate(batches(1), spec("static", max_num_seqs=SLOTS, max_model_len=256))
    assert np.unique(done.records.last).size == 1
