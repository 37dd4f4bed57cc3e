"""Whatever a client sends, it gets an error it can act on, in OpenAI's shape: never a 500, never silence."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import openai
import pytest

MODEL = "smollm2-135m"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


def check(answer: httpx.Response, status: int = 400, param: str | None = None, text: str = "") -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and isinstance(error["message"], str) and "\n" not in error["message"]
    assert text in error["message"]
    if param is not None:
        assert error["param"] == param, error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"3",
        b'"text"',
        b"null",
        b'{"prompt": "a"}}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b"[" * 100_000,
        b'{"prompt":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"a":' * 10_000,
        b'{"prompt": "a", "max_tokens": ' + b"9" * 10_000 + b"}",
        b"\x00\x01\x02",
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_json_object(http: httpx.Client, path: str, raw: bytes) -> None:
    check(http.post(path, content=raw, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 3),
        ("max_tokens", "ten"),
        ("max_tokens", "10"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("max_tokens", 2**70),
        ("n", 0),
        ("n", -1),
        ("n", 1000),
        ("n", 2**70),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", 1e300),
        ("temperature", 10**400),
        ("temperature", [0.5]),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2**70),
        ("min_p", 2),
        ("seed", 2**70),
        ("seed", "a"),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("min_tokens", -1),
        ("min_tokens", 1000),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"99999999": 1}),
        ("logit_bias", {"5": 1000}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", [1]),
        ("stop", ["a"] * 17),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", {"a": 1}),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [10**9]),
        ("stop_token_ids", [2**70]),
        ("stop_token_ids", "a"),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("prompt_logprobs", 100),
        ("priority", 2**70),
        ("priority", "high"),
        ("user", 3),
        ("cache_salt", ""),
        ("best_of", 3),
    ],
)
def test_values_out_of_range_name_their_field(http: httpx.Client, field: str, value: Any) -> None:
    for path, base in ((COMPLETIONS, {"prompt": "Hi"}), (CHAT, {"messages": HI})):
        body = {"model": MODEL, "max_tokens": 4, **base, field: value}
        check(http.post(path, content=json.dumps(body)), 400, field, field)


def test_numbers_beyond_floating_point(http: httpx.Client) -> None:
    for field in ("temperature", "top_p", "min_p", "presence_penalty"):
        check(http.post(COMPLETIONS, content=f'{{"prompt": "a", "{field}": 1e400}}'), 400, field)
        check(http.post(COMPLETIONS, content=f'{{"prompt": "a", "{field}": -1e400}}'), 400, field)


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        [],
        [[]],
        [""],
        ["a", ""],
        None,
        3,
        {"a": 1},
        [1.5],
        [True],
        [None],
        [1, "a"],
        ["a", [1]],
        [[1], "a"],
        [["a"]],
        [-1],
        [2**31],
        [2**70],
        [[1], [10**9]],
        ["a"] * 2000,
    ],
)
def test_prompts_that_are_none(http: httpx.Client, prompt: Any) -> None:
    check(http.post(COMPLETIONS, content=json.dumps({"prompt": prompt})), 400, "prompt")
    check(http.post(COMPLETIONS, content=json.dumps({"prompt": prompt, "stream": True})), 400, "prompt")


def test_a_missing_prompt(http: httpx.Client) -> None:
    check(http.post(COMPLETIONS, json={"model": MODEL}), 400, "prompt")
    check(http.post(CHAT, json={"model": MODEL}), 400, "messages")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "Hi",
        {},
        [3],
        [{}],
        [{"content": "Hi"}],
        [{"role": 3, "content": "Hi"}],
        [{"role": "", "content": "Hi"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}],
        [{"role": "user", "content": ["Hi"]}],
        [{"role": "user", "content": "word " * 3000}],
    ],
)
def test_messages_that_are_none(http: httpx.Client, messages: Any) -> None:
    check(http.post(CHAT, json={"messages": messages}), 400, "messages")
    check(http.post(CHAT, json={"messages": messages, "stream": True}), 400, "messages")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("suffix", "end"),
        ("chat_template", "{{ messages }}"),
        ("guided_regex", "a+"),
        ("top_logprobs", 2),
        ("logprobs", 5),
    ],
)
def test_what_is_not_served_is_refused_by_name(http: httpx.Client, field: str, value: Any) -> None:
    check(http.post(CHAT, json={"messages": HI, field: value}), 400, field, field)


def test_unknown_fields_are_ignored(http: httpx.Client) -> None:
    body = {"prompt": "Hi", "max_tokens": 1, "from_the_future": [1, 2]}
    assert http.post(COMPLETIONS, json=body).status_code == 200


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_an_unknown_model_is_404(http: httpx.Client, path: str) -> None:
    body = {"model": "gpt-4", "prompt": "Hi", "messages": HI, "tokens": [1]}
    check(http.post(path, json=body), 404, "model", "gpt-4")


def test_prompts_longer_than_the_context(http: httpx.Client, client: openai.OpenAI) -> None:
    for prompt in ([5] * 1024, [5] * 50_000, "word " * 2000, "a" * 200_000):
        answer = http.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 1})
        check(answer, 400, "prompt")
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert client.completions.create(model=MODEL, prompt=[5] * 1023, max_tokens=1).choices  # the longest that fits
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt="Hi", max_tokens=1024)
    assert raised.value.code == "context_length_exceeded" and "1024" in str(raised.value)
    check(http.post(COMPLETIONS, json={"prompt": ["Hi", [5] * 3][0:1], "max_tokens": 5000, "stream": True}), 400)


def test_one_bad_prompt_refuses_the_request(http: httpx.Client) -> None:
    check(http.post(COMPLETIONS, json={"prompt": ["Hi", "word " * 2000], "stream": True}), 400, "prompt")


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": "a", "messages": HI}, {"prompt": 3}, {"messages": []}, {"prompt": "a", "add_special_tokens": 3}],
)
def test_tokenize_takes_a_prompt_or_messages(http: httpx.Client, body: dict[str, Any]) -> None:
    check(http.post("/tokenize", json=body))


@pytest.mark.parametrize("tokens", [None, "a", ["a"], [-1], [10**9], [2**70], [1.5], [True]])
def test_detokenize_takes_token_ids(http: httpx.Client, tokens: Any) -> None:
    check(http.post("/detokenize", content=json.dumps({"tokens": tokens})), 400, "tokens")


def test_unknown_routes_and_methods(http: httpx.Client) -> None:
    for path in ("/", "/v1", "/v2/completions", "/v1/completions/", "/v1/embeddings"):
        check(http.post(path, json={}), 404)
    check(http.get(COMPLETIONS), 405)
    check(http.delete("/v1/models"), 405)


def test_a_body_over_the_limit_is_413(http: httpx.Client) -> None:
    check(http.post(COMPLETIONS, json={"prompt": "a" * 300_000}), 413, text="262144")
    check(http.post(COMPLETIONS, content=b"a" * 20_000_000), 413)
    chunks = (b"a" * 65_536 for _ in range(64))
    check(http.post(COMPLETIONS, content=chunks), 413)
    assert http.get("/health").status_code == 200


def test_an_announced_body_over_the_limit_is_not_waited_for(server: Any) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a-test-key\r\n"
    for length in (b"99999999", b"9" * 18):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(head + b"Content-Length: " + length + b"\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_an_endless_chunked_body_is_cut_off(server: Any) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a-test-key\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
        raw.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            raw.sendall(b"4000\r\n" + b"a" * 0x4000 + b"\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "raw_request",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: abc\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a-test-key\r\n\r\n",
        b"GET /v1/models/%00 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a-test-key\r\n\r\n",
    ],
)
def test_broken_http_gets_a_4xx(server: Any, raw_request: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
        raw.sendall(raw_request)
        assert raw.recv(100).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"max_tokens": "5"}, 'max_tokens must be an integer, got "5"'),
        ({"temperature": "hot"}, 'temperature must be a number, got "hot"'),
        ({"stop": 5}, "stop must be a string or a list of strings, got 5"),
        ({"user": "u" * 300}, "user must be at most 256 characters long"),
        ({"timeout": 0}, "timeout must be above 0.0, got 0"),
        ({"logit_bias": [1]}, "logit_bias must be an object, got [1]"),
        ({"prompt": [1, 2, "a"]}, 'got [1, 2, "a"]'),
        ({"max_token": 1}, "max_token: there is no such field; did you mean max_tokens?"),
        ({"temprature": 0}, "did you mean temperature?"),
    ],
)
def test_an_error_says_what_was_sent_and_what_it_must_be(http: httpx.Client, body: dict[str, Any], text: str) -> None:
    check(http.post(COMPLETIONS, json={"prompt": "a", **body}), 400, next(iter(body)), text)


def test_fields_of_the_api_that_change_nothing_here_are_taken(http: httpx.Client) -> None:
    body = {"messages": HI, "max_tokens": 1, "store": False, "service_tier": "auto", "metadata": {"a": "b"}}
    assert http.post(CHAT, json=body).status_code == 200
    check(http.post(CHAT, json={**body, "echo": True}), 400, "echo")


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "ended=maybe"])
def test_a_query_gets_errors_of_the_same_shape(http: httpx.Client, query: str) -> None:
    check(http.get(f"/v1/requests?{query}"), 400, query.partition("=")[0], "must be")
