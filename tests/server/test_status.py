"""What the server says about itself, and to whom."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import httpx
import openai
import pytest

import paceline

MODEL = "smollm2-135m"


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert models[0].max_model_len == 1024
    assert client.models.retrieve(MODEL).owned_by == "paceline"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/model")


def test_health_and_version_need_no_key(server: Any) -> None:
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/version").json() == {"version": paceline.__version__}


def test_metrics_have_vllms_names(server: Any, client: openai.OpenAI) -> None:
    client.completions.create(model=MODEL, prompt="Hello", max_tokens=3)
    page = httpx.get(server.url + "/metrics").text
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        'request_success_total{finished_reason="length"',
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "request_time_per_output_token_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
    ):
        assert f"\npaceline:{name}" in page, name
    assert server.metric("generation_tokens_total") >= 3
    assert server.metric("steps_total") >= 3


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic a-test-key", "a-test-key", "Bearer \xff"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/tokenize", "/nowhere"])
def test_without_a_key_there_is_no_answer(server: Any, path: str, header: str | None) -> None:
    headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    answer = httpx.get(server.url + path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_every_key_given_works(server: Any) -> None:
    for key in ("a-test-key", "another-key"):
        answer = httpx.get(server.url + "/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200


def test_the_printed_curl_line_works_when_pasted(server: Any) -> None:
    line = server.printed[-1]
    assert "YOUR_API_KEY" in line  # not a terminal: the key stays out of what may be a log file
    answer = subprocess.run(
        [*shlex.split(line.replace("YOUR_API_KEY", "a-test-key")), "--silent", "--max-time", "60"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "Paris" in answer


def test_tokenize_and_detokenize_are_inverse(http: httpx.Client) -> None:
    text = "Grüße, 世界! \U0001f600"
    answer = http.post("/tokenize", json={"model": MODEL, "prompt": text, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 1024
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}


def test_tokenize_messages_shows_the_prompt_of_a_chat(http: httpx.Client, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    tokens = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    prompt = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert "Hi" in prompt and prompt.rstrip().endswith("assistant")
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert answer.usage and answer.usage.prompt_tokens == len(tokens)
