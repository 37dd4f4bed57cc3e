"""/v1/completions through the official client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

MODEL = "smollm2-135m"
PROMPT = "The capital of France is"


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **more: Any) -> Any:
    options = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, **more}
    return client.completions.create(**options)


def test_greedy_completion_is_repeatable_and_counted(client: openai.OpenAI) -> None:
    first, second = complete(client), complete(client)
    assert "Paris" in first.choices[0].text
    assert first.choices[0].text == second.choices[0].text
    assert first.object == "text_completion" and first.model == MODEL and first.id.startswith("cmpl-")
    assert first.choices[0].finish_reason == "length"
    assert first.usage is not None
    assert first.usage.completion_tokens == 8
    assert first.usage.total_tokens == first.usage.prompt_tokens + 8


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    prompt = "An unusual opening about cached prompts: " + "one two three four " * 12
    cold, warm = complete(client, prompt), complete(client, prompt)
    assert cold.usage and warm.usage and cold.usage.prompt_tokens_details and warm.usage.prompt_tokens_details
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    assert warm.usage.prompt_tokens_details.cached_tokens >= (warm.usage.prompt_tokens - 1) // 16 * 16
    assert cold.choices[0].text == warm.choices[0].text


def test_another_salt_does_not_share_the_cache(client: openai.OpenAI) -> None:
    prompt = "A salted opening about caches: " + "five six seven " * 12
    complete(client, prompt, extra_body={"cache_salt": "a"})
    same = complete(client, prompt, extra_body={"cache_salt": "a"})
    other = complete(client, prompt, extra_body={"cache_salt": "b"})
    assert same.usage and same.usage.prompt_tokens_details and same.usage.prompt_tokens_details.cached_tokens
    assert other.usage and other.usage.prompt_tokens_details
    assert other.usage.prompt_tokens_details.cached_tokens == 0


def test_every_form_of_prompt(client: openai.OpenAI, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    text = complete(client).choices[0].text
    assert complete(client, tokens).choices[0].text == text
    several = complete(client, [PROMPT, "Water is"], n=2, temperature=0)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in several.choices[:2]] == [text, text]
    of_tokens = complete(client, [tokens, tokens])
    assert [choice.text for choice in of_tokens.choices] == [text, text]


def test_a_stream_says_what_the_whole_says(client: openai.OpenAI) -> None:
    whole = complete(client, max_tokens=20)
    chunks = list(complete(client, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert not chunks[-1].choices and chunks[-1].usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_of_several_prompts_and_samples(client: openai.OpenAI) -> None:
    whole = complete(client, [PROMPT, "Water is"], n=2)
    texts = [""] * 4
    reasons = [None] * 4
    for chunk in complete(client, [PROMPT, "Water is"], n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == ["length"] * 4


def test_logprobs_run_along_the_tokens(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=3).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens and logprobs.token_logprobs and logprobs.top_logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 8
    assert "".join(logprobs.tokens) == choice.text
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert value is not None and value <= 0
        assert top[token] == value == max(top.values())  # greedy takes the likeliest
        assert len(top) == 3
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:i])) for i in range(8)]


def test_echo_scores_the_prompt(client: openai.OpenAI) -> None:
    choice = complete(client, echo=True, max_tokens=0, logprobs=1).choices[0]
    assert choice.text == PROMPT
    assert choice.logprobs is not None and choice.logprobs.tokens and choice.logprobs.token_logprobs
    assert "".join(choice.logprobs.tokens) == PROMPT
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value is not None and value < 0 for value in choice.logprobs.token_logprobs[1:])
    longer = complete(client, echo=True, max_tokens=2)
    assert longer.choices[0].text.startswith(PROMPT + " Paris")
    chunks = complete(client, echo=True, max_tokens=2, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == longer.choices[0].text


def test_prompt_logprobs(client: openai.OpenAI) -> None:
    answer = complete(client, extra_body={"prompt_logprobs": 2})
    given = answer.choices[0].prompt_logprobs
    assert answer.usage and len(given) == answer.usage.prompt_tokens
    assert given[0] is None
    assert all(2 <= len(position) <= 3 for position in given[1:])
    assert {"logprob", "rank", "decoded_token"} == set(next(iter(given[1].values())))


@pytest.mark.parametrize("included", [False, True])
def test_stop_strings_end_the_text(client: openai.OpenAI, included: bool) -> None:
    free = complete(client, max_tokens=20).choices[0].text
    stop = free[8:12]
    extra = {"include_stop_str_in_output": included}
    choice = complete(client, max_tokens=20, stop=["never seen", stop], extra_body=extra).choices[0]
    assert choice.text == free[: free.index(stop) + (len(stop) if included else 0)]
    assert choice.finish_reason == "stop" and choice.stop_reason == stop


def test_stop_token_ids_and_min_tokens(client: openai.OpenAI, http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": " Paris", "add_special_tokens": False}).json()["tokens"]
    choice = complete(client, extra_body={"stop_token_ids": tokens}).choices[0]
    assert choice.finish_reason == "stop" and choice.stop_reason == tokens[0]
    longer = complete(client, extra_body={"stop_token_ids": tokens, "min_tokens": 4})
    assert longer.usage and longer.usage.completion_tokens >= 4


def test_a_seed_makes_sampling_repeatable(client: openai.OpenAI) -> None:
    hot = {"temperature": 1.5, "max_tokens": 12}
    one, same, other = (complete(client, seed=seed, **hot).choices[0].text for seed in (7, 7, 8))
    assert one == same != other
    three = complete(client, seed=7, n=3, **hot).choices
    assert three[0].text == one and len({choice.text for choice in three}) == 3


def test_logit_bias_decides(client: openai.OpenAI, http: httpx.Client) -> None:
    token = http.post("/tokenize", json={"prompt": " London", "add_special_tokens": False}).json()["tokens"][0]
    assert complete(client, logit_bias={str(token): 100}, max_tokens=2).choices[0].text == " London London"
