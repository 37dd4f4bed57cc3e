"""What is expected of a sequence, by each way to know."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.params import SamplingParams
from paceline.core.predictors import PREDICTORS, predictor
from paceline.core.replay import replay
from paceline.core.request import FinishReason, Request, Sequence
from paceline.errors import ConfigError


def sequence(generated: int = 0, tenant: int = 0, hint: int | None = None, length: int | None = None) -> Sequence:
    params = SamplingParams(max_tokens=100)
    prompt = np.arange(10, dtype=np.int32)
    made = Sequence(Request(id="r", prompt=prompt, params=params, output_hint=hint, output_length=length), 0, 0)
    made.max_length = 110
    made.tenant = tenant
    made.tokens = np.arange(10 + generated, dtype=np.int32)
    return made


def ended(generated: int, tenant: int, reason: FinishReason = FinishReason.STOP) -> Sequence:
    made = sequence(generated, tenant)
    made.finish_reason = reason
    return made


def test_max_tokens_expects_as_many_as_there_may_be() -> None:
    assert predictor("max-tokens").predict(sequence(hint=3, length=5)) == 100


def test_a_hint_is_taken_within_what_may_be() -> None:
    hint = predictor("hint")
    assert [hint.predict(sequence(hint=said)) for said in (7, 0, 1000, None)] == [7, 1, 100, 100]


def test_an_oracle_knows_and_otherwise_asks_for_a_hint() -> None:
    oracle = predictor("oracle")
    assert oracle.predict(sequence(length=5, hint=9)) == 5
    assert oracle.predict(sequence(hint=9)) == 9


def test_a_tenants_mean_follows_what_its_requests_generated() -> None:
    mean = predictor("tenant-mean")
    assert mean.predict(sequence(tenant=1)) == 100
    mean.finished(ended(10, 1))
    assert mean.predict(sequence(tenant=1)) == 10
    mean.finished(ended(20, 1))
    assert mean.predict(sequence(tenant=1)) == pytest.approx(12)
    mean.finished(ended(90, 1, FinishReason.ABORT))
    assert mean.predict(sequence(tenant=1)) == pytest.approx(12)
    assert mean.predict(sequence(tenant=2)) == 100


def test_the_names_are_those_of_the_table() -> None:
    with pytest.raises(ConfigError, match=r"predictor: 'nosuch' .* tenant-mean"):
        predictor("nosuch")
    assert set(PREDICTORS) == {"max-tokens", "hint", "tenant-mean", "oracle"}


def test_an_order_learns_from_what_has_finished() -> None:
    """Tenant a's answers turn out short, so its next request goes before b's although it came later."""
    requests = [
        {"id": "a0", "arrival_step": 0, "prompt_len": 4, "output_len": 2, "tenant": "a"},
        {"id": "b0", "arrival_step": 0, "prompt_len": 4, "output_len": 9, "tenant": "b"},
        {"id": "b1", "arrival_step": 4, "prompt_len": 4, "output_len": 20, "tenant": "b"},
        {"id": "a1", "arrival_step": 4, "prompt_len": 4, "output_len": 20, "tenant": "a"},
    ]
    config = {"order": "sjf", "max_num_seqs": 1, "num_blocks": 64, "block_size": 4, "max_model_len": 64}
    *lines, _ = replay({"config": {**config, "predictor": "tenant-mean"}, "requests": requests})
    assert [name for line in lines for name in line["new"]] == ["a0", "b0", "a1", "b1"]
