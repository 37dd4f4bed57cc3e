"""/v1/chat/completions through the official client."""

from __future__ import annotations

from typing import Any

import openai

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def chat(client: openai.OpenAI, messages: Any = QUESTION, **more: Any) -> Any:
    options = {"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 0, **more}
    return client.chat.completions.create(**options)


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = chat(client)
    message = answer.choices[0].message
    assert "Paris" in message.content and message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_whole_says(client: openai.OpenAI) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    usage = chunks[-1].usage
    assert not chunks[-1].choices and usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= (usage.prompt_tokens - 1) // 16 * 16


def test_three_samples_share_the_prompt(client: openai.OpenAI) -> None:
    answer = chat(client, n=3, temperature=1.5, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1
    streamed = ["", "", ""]
    for chunk in chat(client, n=3, temperature=1.5, seed=3, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_logprobs(client: openai.OpenAI) -> None:
    choice = chat(client, logprobs=True, top_logprobs=2, max_tokens=5).choices[0]
    content = choice.logprobs.content
    assert "".join(entry.token for entry in content) == choice.message.content
    assert all(bytes(entry.bytes).decode() == entry.token for entry in content)
    assert all(len(entry.top_logprobs) == 2 and entry.top_logprobs[0].token == entry.token for entry in content)
    chunks = chat(client, logprobs=True, top_logprobs=2, max_tokens=5, stream=True)
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]
    assert chat(client, logprobs=True, max_tokens=1).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(client, max_tokens=1).choices[0].logprobs is None


def test_stop_and_max_completion_tokens(client: openai.OpenAI) -> None:
    stopped = chat(client, stop="Paris").choices[0]
    assert "Paris" not in stopped.message.content and stopped.finish_reason == "stop"
    short = chat(client, max_tokens=openai.NOT_GIVEN, max_completion_tokens=2)
    assert short.usage.completion_tokens == 2 and short.choices[0].finish_reason == "length"


def test_without_a_limit_the_model_decides(client: openai.OpenAI) -> None:
    assert chat(client, max_tokens=openai.NOT_GIVEN).choices[0].finish_reason == "stop"


def test_content_in_parts_is_text(client: openai.OpenAI) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert chat(client, parts).choices[0].message.content == chat(client).choices[0].message.content


def test_a_started_answer_is_continued(client: openai.OpenAI) -> None:
    started = [*QUESTION, {"role": "assistant", "content": "The city you ask for is"}]
    extra = {"add_generation_prompt": False, "continue_final_message": True}
    assert "Paris" in chat(client, started, extra_body=extra).choices[0].message.content


def test_priority_and_user_are_taken(client: openai.OpenAI) -> None:
    assert chat(client, user="team-a", extra_body={"priority": -5}).choices[0].message.content


def test_harmless_forms_of_unsupported_fields_pass(client: openai.OpenAI) -> None:
    answer = chat(client, tools=[], response_format={"type": "text"}, metadata={"a": "b"}, max_tokens=1)
    assert answer.choices
