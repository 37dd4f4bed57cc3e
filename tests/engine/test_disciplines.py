"""Every row of the table serves the real model, through the settings and the loop that users get."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline import LLM, SamplingParams
from paceline.core.disciplines import DISCIPLINES
from paceline.core.scheduler import Scheduler
from paceline.engine import messages
from paceline.engine.config import EngineConfig
from paceline.engine.core_loop import EngineLoop

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
PROMPTS = ("The capital of France is", "Two and two make", "Water boils at a temperature of")
CONTEXT = 512


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Loaded once, with rows enough for every discipline; each test puts a scheduler of its own on its executor."""
    settings = {"dtype": "float32", "device": "cpu", "threads": 1}
    with LLM(**settings, num_blocks=256, max_model_len=CONTEXT, max_num_seqs=4096, max_num_batched_tokens=4096) as llm:
        yield llm


def serve(llm: LLM, config: EngineConfig) -> list[str]:
    executor = llm._engine().executor
    ends = llm._engine().scheduler.config.eos_token_ids
    scheduler = Scheduler(config.scheduler(256, CONTEXT, ends), config.schedule_by())
    llm._loop = EngineLoop(scheduler, executor)
    texts = [result.text for result in llm.generate(PROMPTS, GREEDY, progress=False)]
    assert not scheduler.has_work()
    scheduler.check()
    return texts


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[str]:
    return [llm.generate(prompt, GREEDY, progress=False)[0].text for prompt in PROMPTS]


@pytest.mark.parametrize("name", [*DISCIPLINES, "triton"])
def test_a_row_answers_and_says_the_same(llm: LLM, expected: list[str], name: str) -> None:
    assert serve(llm, EngineConfig(discipline=name, block_size=16)) == expected


@pytest.mark.slow
def test_a_row_gets_blocks_of_its_own_size() -> None:
    with LLM(
        discipline="fastgen", dtype="float32", device="cpu", threads=1, num_blocks=8, max_model_len=CONTEXT
    ) as llm:
        assert llm.info["block_size"] == DISCIPLINES["fastgen"].defaults["block_size"] == 64
        assert llm.info["discipline"] == "fastgen"
        assert "Paris" in llm.generate(PROMPTS[0], GREEDY, progress=False)[0].text


def test_a_request_in_the_way_of_none_can_be_explained(llm: LLM) -> None:
    serve(llm, EngineConfig(block_size=16))
    assert llm._engine().explain(None) == {}
    assert llm._engine().handle(messages.Explain(1)) == [messages.Explained(1, {})]
