"""Whatever the discipline or the order, the text is the same."""

from __future__ import annotations

import pytest

from paceline.core.disciplines import DISCIPLINES, discipline
from paceline.core.orders import ORDERS
from paceline.core.params import SamplingParams
from paceline.errors import ConfigError

from .rig import Rig

TOKENS = 4
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
pytestmark = pytest.mark.slow


def assert_same_text(rig: Rig, prompts: list[list[int]], expected: list[list[int]]) -> None:
    for index, prompt in enumerate(prompts):
        rig.add(f"p{index}", prompt, GREEDY, priority=index % 3, tenant=f"t{index % 4}")
    rig.run()
    for index in range(len(prompts)):
        assert rig.tokens[f"p{index}"] == expected[index][:TOKENS], f"prompt {index}"


@pytest.mark.parametrize("name", list(DISCIPLINES))
def test_under_every_discipline(rig: Rig, prompts: list[list[int]], expected: list[list[int]], name: str) -> None:
    rig.start(name, num_blocks=160, max_model_len=256, max_num_batched_tokens=320)
    assert_same_text(rig, prompts, expected)


@pytest.mark.parametrize("order", list(ORDERS))
def test_under_every_order(rig: Rig, prompts: list[list[int]], expected: list[list[int]], order: str) -> None:
    row = "reselect" if order in ("mlfq", "srtf") else "paceline"
    try:
        discipline(row, order)
        rig.start(row, order, num_blocks=48, max_model_len=256, max_num_batched_tokens=320, max_num_seqs=16)
    except ConfigError as error:
        pytest.skip(str(error))
    assert_same_text(rig, prompts, expected)
