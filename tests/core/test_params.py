"""Every parameter and setting out of range is refused by its name, with its value and the range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import DISCIPLINES, discipline
from paceline.core.orders import ORDERS
from paceline.core.params import SamplingParams
from paceline.core.request import sequence_id, sequence_seed
from paceline.errors import ConfigError, PacelineError, RequestError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("n", -1),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", 2**31),
        ("min_tokens", -1),
        ("min_tokens", 17),  # above max_tokens
        ("temperature", -0.1),
        ("temperature", 100.5),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 2**31),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 101.0),
        ("presence_penalty", 2.5),
        ("presence_penalty", -math.inf),
        ("frequency_penalty", -2.5),
        ("stop", ("a",) * 17),
        ("stop", ("a", "")),
        ("stop", ""),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 21),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", dict.fromkeys(range(1025), 0.0)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name and caught.value.status == 400
    if not isinstance(value, (dict, tuple, str)):
        assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"n": 1},
        {"n": 128},
        {"max_tokens": None, "min_tokens": 1000},
        {"max_tokens": 1, "min_tokens": 1},
        {"temperature": 0.0},
        {"temperature": 100.0},
        {"top_p": 1.0},
        {"top_p": 1e-9},
        {"top_k": -1},
        {"top_k": 0},
        {"min_p": 1.0},
        {"seed": 2**64 - 1},
        {"seed": -(2**63)},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"logprobs": 0, "prompt_logprobs": 20},
        {"logit_bias": {0: -100.0, 1: 100.0}},
        {"stop": ("a",) * 16},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(values: dict[str, Any]) -> None:
    params = SamplingParams(**values)
    assert all(getattr(params, name) == value for name, value in values.items())


def test_one_stop_string_is_a_list_of_one_and_lists_become_tuples() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)  # type: ignore[arg-type]


def test_parameters_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().n = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_blocks": 0}, "--num-blocks: 0 is not valid; it must be a whole number of at least 1"),
        ({"block_size": 0}, "--block-size: 0"),
        ({"block_size": 1.5}, "--block-size: 1.5"),
        ({"block_size": True}, "--block-size: True"),
        ({"max_num_seqs": 0}, "--max-num-seqs: 0"),
        ({"max_model_len": -3}, "--max-model-len: -3"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens: 0"),
        ({"long_prefill_token_threshold": -1}, "--long-prefill-token-threshold: -1"),
        ({"watermark": 1.0}, "--watermark: 1.0"),
        ({"watermark": -0.1}, "--watermark: -0.1"),
        ({"watermark": math.nan}, "--watermark: nan"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 2047},
            r"--max-num-batched-tokens: 2047 .* at least --max-model-len \(2048\)",
        ),
        (
            {"max_num_seqs": 64, "max_num_batched_tokens": 63},
            r"--max-num-batched-tokens: 63 .* at least --max-num-seqs \(64\)",
        ),
    ],
)
def test_a_setting_out_of_range_is_refused_by_the_name_of_its_flag(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig(**{"num_blocks": 8, **settings})


def test_config_errors_are_errors_a_user_can_catch_at_once() -> None:
    assert issubclass(ConfigError, PacelineError) and issubclass(RequestError, PacelineError)


@pytest.mark.parametrize("name", DISCIPLINES)
def test_every_discipline_names_itself_and_refuses_knobs_it_does_not_have(name: str) -> None:
    row = discipline(name)
    assert row.name == name and row.after
    with pytest.raises(ConfigError, match=f"--knob: 'nosuch' is not valid; it must be a knob of {name}"):
        row.with_knobs({"nosuch": 1})
    assert row.with_knobs(row.knobs()) == row


def test_a_knob_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="--knob most: 'many' is not valid; it must be a whole number of at least 0"):
        discipline("paceline").with_knobs({"most": "many"})


@pytest.mark.parametrize(
    ("knob", "value", "allowed"),
    [
        ("growth", -1, "a whole number of at least 0, or null"),
        ("growth", "abc", "a whole number of at least 0, or null"),
        ("growth", 1.5, "a whole number of at least 0, or null"),
        ("window", 0, "a whole number of at least 1"),
        ("stretch", float("nan"), "a number of at least 0"),
        ("stretch", float("inf"), "a number of at least 0"),
        ("leaders", 1, "true or false"),
        ("how", 5, "one of recompute"),
    ],
)
def test_a_knob_out_of_range_is_refused_as_it_was_written(knob: str, value: Any, allowed: str) -> None:
    row = discipline("paceline")
    with pytest.raises(ConfigError, match=f"^--knob {knob}: .*{allowed}"):
        row.with_knobs({knob: value})
    with pytest.raises(ConfigError, match=f"^config.{knob}: .*{allowed}"):
        row.with_knobs({knob: value}, where="config.")


def test_what_an_order_refuses_itself_is_named_as_a_knob() -> None:
    with pytest.raises(ConfigError, match=r"^--knob patience: 0\.0 is .* a number of seconds above 0"):
        discipline("paceline", "turns").with_knobs({"patience": 0.0})


@pytest.mark.parametrize("order", ORDERS)
def test_the_range_of_every_knob_has_its_default(order: str) -> None:
    row = discipline("paceline", order)
    assert row.with_knobs(row.knobs()) == row


def test_sequences_of_a_request_have_names_and_seeds_of_their_own() -> None:
    assert [sequence_id("r", index) for index in range(3)] == ["r", "r#1", "r#2"]
    seeds = {sequence_seed(seed, index) for seed in (0, 1, -1, 2**64 - 1) for index in range(128)}
    assert len(seeds) == 3 * 128 and all(0 <= seed < 2**64 for seed in seeds), "-1 and 2**64 - 1 are the same 64 bits"
