"""Offline generation in this process, on the real model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError, EngineDeadError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", device="cpu", threads=1, num_blocks=256, max_model_len=1024) as llm:
        yield llm


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["The sky is", "Two and two make", "My name is"]
    together = llm.generate(prompts, GREEDY)
    assert [result.prompt for result in together] == prompts
    assert [result.text for result in together] == [llm.generate(prompt, GREEDY)[0].text for prompt in prompts]
    assert all(result.finished and len(result.completions[0].token_ids) == 8 for result in together)


def test_token_ids_and_texts_are_the_same_prompt(llm: LLM) -> None:
    tokens = llm.tokenizer.encode("The sky is")
    by_text, by_tokens = llm.generate("The sky is", GREEDY), llm.generate(tokens, GREEDY)
    assert by_text[0].text == by_tokens[0].text
    assert by_tokens[0].prompt is None and by_tokens[0].prompt_token_ids == tokens
    assert [r.text for r in llm.generate([tokens, "The sky is"], GREEDY)] == [by_text[0].text] * 2


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    first, second = llm.generate(["A", "B"], [replace(GREEDY, max_tokens=2), replace(GREEDY, max_tokens=5, n=2)])
    assert [len(c.token_ids) for c in first.completions] == [2]
    assert [len(c.token_ids) for c in second.completions] == [5, 5]
    with pytest.raises(RequestError, match="2 prompts came with 1"):
        llm.generate(["A", "B"], [GREEDY])


def test_chat_answers_through_the_template(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (result,) = llm.chat(question, replace(GREEDY, max_tokens=20))
    assert result.text == "The capital of France is Paris."
    assert result.completions[0].finish_reason == "stop"
    two = llm.chat([question, question], replace(GREEDY, max_tokens=20))
    assert [answer.text for answer in two] == [result.text] * 2


@pytest.mark.slow
def test_with_no_settings_at_all_the_model_knows_the_capital_of_france() -> None:
    with LLM(threads=1, num_blocks=16, max_model_len=64) as llm:
        (result,) = llm.chat([{"role": "user", "content": "What is the capital of France?"}], GREEDY)
    assert "Paris" in result.text


def test_stop_strings_end_sequences_and_leave_nothing_running(llm: LLM) -> None:
    whole = llm.generate("The sky is", GREEDY)[0].text
    stop = whole[5:8]
    (result,) = llm.generate("The sky is", replace(GREEDY, stop=(stop,), max_tokens=500))
    assert result.text == whole[: whole.index(stop)]
    assert (result.completions[0].finish_reason, result.completions[0].stop_reason) == ("stop", stop)
    stats = llm.stats()
    assert (stats["running"], stats["waiting"], stats["blocks_held"]) == (0, 0, 0)


def test_one_bad_prompt_stops_all_before_anything_runs(llm: LLM) -> None:
    steps = llm.stats()["steps"]
    with pytest.raises(RequestError, match="empty"):
        llm.generate(["fine", ""], GREEDY)
    stats = llm.stats()
    assert (stats["steps"], stats["running"], stats["waiting"]) == (steps, 0, 0)


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_settings_are_checked_and_a_closed_llm_says_so() -> None:
    with pytest.raises(ConfigError, match="--max-num-seqs"):
        LLM(max_num_seqs=0)
    with pytest.raises(TypeError, match="none_such"):
        LLM(none_such=1)


@pytest.mark.slow
def test_generating_after_close_is_an_error() -> None:
    llm = LLM(dtype="float32", device="cpu", threads=1, num_blocks=16, max_model_len=64)
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("A")
