"""Queue policies keep exactly the order of a plain list, whatever is added, resumed and removed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.compositions import MixedChunks
from paceline.core.disciplines import discipline
from paceline.core.orders import ORDERS
from paceline.core.orders.vtc import VtcPolicy
from paceline.core.request import Request, Sequence
from paceline.errors import ConfigError


def sequence(number: int, priority: int = 0, arrival: float = 0.0, name: str | None = None) -> Sequence:
    request = Request(id=name or f"r{number:03d}", prompt=np.array([1], np.int32), priority=priority, arrival=arrival)
    return Sequence(request, 0, number)


class Fcfs:
    """The naive model: a list."""

    def __init__(self) -> None:
        self.items: list[Sequence] = []

    def add(self, item: Sequence) -> None:
        self.items.append(item)

    def resume(self, item: Sequence) -> None:
        self.items.insert(0, item)

    def remove(self, item: Sequence) -> None:
        self.items.remove(item)

    def ordered(self) -> list[Sequence]:
        return self.items


class Priority(Fcfs):
    def resume(self, item: Sequence) -> None:
        self.items.append(item)

    def ordered(self) -> list[Sequence]:
        return sorted(self.items, key=lambda item: (item.priority, item.arrival, item.id))


MODELS = {"fcfs": Fcfs, "priority": Priority}


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=200, deadline=None)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "resume", "remove", "first", "all"]),
            st.integers(-2, 2),
            st.integers(0, 3),
            st.integers(0, 1000),
        ),
        max_size=120,
    )
)
def test_an_order_is_a_sorted_list(name: str, actions: list[tuple[str, int, int, int]]) -> None:
    order, model = ORDERS[name].queue(), MODELS[name]()
    for number, (action, priority, arrival, pick) in enumerate(actions):
        if action in ("add", "resume"):
            item = sequence(number, priority, float(arrival))
            getattr(order, action)(item)
            getattr(model, action)(item)
        elif action == "remove" and model.items:
            item = model.items[pick % len(model.items)]
            order.remove(item)
            model.remove(item)
        elif action == "first":
            assert order.first() is next(iter(model.ordered()), None)
        else:
            assert list(order) == model.ordered()
        assert len(order) == len(model.items)
    drained = []
    while (item := order.first()) is not None:
        drained.append(item)
        order.remove(item)
    assert drained == model.ordered() and len(order) == 0


@pytest.mark.parametrize("name", ORDERS)
def test_an_empty_order_has_no_first_and_no_members(name: str) -> None:
    order = ORDERS[name].queue()
    assert order.first() is None and list(order) == [] and len(order) == 0


@pytest.mark.parametrize("name", ORDERS)
def test_first_leaves_the_sequence_where_it_is(name: str) -> None:
    order = ORDERS[name].queue()
    order.add(sequence(0))
    assert order.first() is order.first() is not None and len(order) == 1


@pytest.mark.parametrize("name", ORDERS)
def test_removing_what_does_not_wait_is_an_error(name: str) -> None:
    with pytest.raises(KeyError):
        ORDERS[name].queue().remove(sequence(0))


@pytest.mark.parametrize("name", ORDERS)
def test_what_was_removed_may_come_back(name: str) -> None:
    order, item = ORDERS[name].queue(), sequence(0)
    for _ in range(3):
        order.add(item)
        order.remove(item)
        order.resume(item)
        assert list(order) == [item]
        order.remove(item)
    assert order.first() is None


def test_fcfs_puts_a_preempted_sequence_before_all_others() -> None:
    order = ORDERS["fcfs"].queue()
    for number in (1, 2):
        order.add(sequence(number))
    for number in (4, 3):  # the newest is preempted first
        order.resume(sequence(number))
    assert [item.number for item in order] == [3, 4, 1, 2]


def test_priority_gives_a_preempted_sequence_its_old_place() -> None:
    order = ORDERS["priority"].queue()
    for number, priority in ((1, 0), (2, 5)):
        order.add(sequence(number, priority))
    order.resume(sequence(3, 1))
    assert [item.number for item in order] == [1, 3, 2]


def test_priority_breaks_ties_by_arrival_then_by_name() -> None:
    order = ORDERS["priority"].queue()
    for number, arrival, name in ((0, 2.0, "a"), (1, 1.0, "c"), (2, 1.0, "b")):
        order.add(sequence(number, 0, arrival, name))
    assert [item.id for item in order] == ["b", "c", "a"]


def test_removed_entries_do_not_pile_up() -> None:
    order = ORDERS["priority"].queue()
    keeper = sequence(0, priority=-1)
    order.add(keeper)
    for number in range(1, 2000):
        item = sequence(number)
        order.add(item)
        order.remove(item)
    assert list(order) == [keeper] and len(order._heap) < 200  # type: ignore[attr-defined]


def test_the_knobs_of_an_order_are_knobs_of_the_discipline() -> None:
    row = discipline("paceline", "vtc").with_knobs({"output_weight": 3, "weights": {"a": 2.0}})
    assert row.knobs()["output_weight"] == 3.0 and row.policy == VtcPolicy(output_weight=3.0, weights={"a": 2.0})
    assert "output_weight" not in row.with_order("fcfs").knobs()
    assert row.with_order("vtc") == discipline("paceline", "vtc"), "another order comes with its own knobs"
    assert ORDERS["vtc"] == VtcPolicy(), "the table stays as it is"


@pytest.mark.parametrize(
    ("order", "knob", "value"),
    [
        ("priority", "age", -1.0),
        ("hrrn", "stretch", -1.0),
        ("hrrn", "patience", -1),
        ("lpm", "fcfs_above", -1),
        ("vtc", "prompt_weight", -1.0),
        ("vtc", "weights", {"a": 0.0}),
        ("dlpm", "quantum", 0),
        ("sjf", "predictor", "nosuch"),
        ("srtf", "turns", 0),
        ("edf", "patience", -1.0),
        ("mlfq", "base", 0.0),
        ("mlfq", "levels", 0),
        ("random", "span", 0),
    ],
)
def test_a_knob_that_makes_no_sense_is_refused(order: str, knob: str, value: object) -> None:
    with pytest.raises(ConfigError, match=knob):
        discipline("paceline", order).with_knobs({knob: value})


def test_a_row_that_ranks_running_sequences_wants_an_order_that_can() -> None:
    row = discipline("reselect", "fcfs")
    with pytest.raises(ConfigError, match=r"--order: 'fcfs' .* rank running sequences: .*edf"):
        row.check(row.configure(num_blocks=1))


def test_buckets_are_rising_lengths() -> None:
    for wrong in ((0,), (8, 4), (4, 4)):
        with pytest.raises(ConfigError, match="buckets"):
            MixedChunks(buckets=wrong)
