"""The tokenizer from the GGUF file is the model's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.tokenizer import Tokenizer, eos_token_ids, load_tokenizer
from paceline.errors import ModelError, RequestError
from paceline.exec.gguf_file import read_gguf

TEXTS = [
    "",
    "Hello, world!",
    "The capital of France is Paris.",
    "price is 12345 dollars",
    "  two  spaces\tand\ttabs\n\n\nand lines\r\n",
    "def f(x):\n    return x**2  # comment\n",
    "don't we'LL they've I'm",
    "naïve café, Ünïcödé, ŁÓDŹ",
    "日本語のテキスト 中文 한국어 ภาษาไทย",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 e\u0301",
    "https://example.com/a?b=c&d=%20#e",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start>|<||im_end|>",
    "\u200b\ufeff\u00a0\u3000",
    "a" * 300,
]


@pytest.fixture(scope="module")
def reference(model_file: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model_file.parent), gguf_file=model_file.name)


@pytest.mark.parametrize("text", TEXTS)
def test_encoding_and_decoding_equal_transformers(tokenizer: Tokenizer, reference, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokens == reference.encode(text)
    for skip in (False, True):
        expected = reference.decode(tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(tokens, skip_special_tokens=skip) == expected


@given(st.text(alphabet=st.characters(exclude_categories=["N", "C"]), max_size=80))
def test_encoding_any_text_without_digits_equals_transformers(tokenizer: Tokenizer, reference, text: str) -> None:
    assert tokenizer.encode(text) == reference.encode(text)


def test_digits_are_split_before_spaces_are_joined_as_the_model_was_trained(tokenizer: Tokenizer) -> None:
    # transformers' conversion of GGUF files loses this rule of SmolLM2's tokenizer.json.
    spelled = [tokenizer.token(token) for token in tokenizer.encode("a  1 22")]
    assert spelled == ["a", "ĠĠ", "1", "Ġ", "2", "2"]


@given(st.lists(st.integers(0, 49151), max_size=30))
def test_token_bytes_add_up_to_the_text(tokenizer: Tokenizer, tokens: list[int]) -> None:
    spelled = b"".join(tokenizer.token_bytes(token) for token in tokens)
    assert spelled.decode("utf-8", "replace") == tokenizer.decode(tokens, skip_special_tokens=False)


def test_ids_out_of_the_vocabulary_decode_to_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert tokenizer.decode([-1, 49152, 2**31]) == ""
    assert tokenizer.token_bytes(49152) == b""


def test_special_tokens_and_ends_come_from_the_file(tokenizer: Tokenizer, model_file: Path) -> None:
    assert tokenizer.eos_ids == eos_token_ids(model_file) == (2,)
    assert {0, 1, 2} <= tokenizer.special_ids


@pytest.mark.parametrize("generation_prompt", [True, False])
def test_the_chat_template_renders_as_in_transformers(tokenizer: Tokenizer, reference, generation_prompt) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "Thanks <3 & 'bye'"},
    ]
    for part in (messages, messages[1:]):
        assert tokenizer.apply_chat_template(part, add_generation_prompt=generation_prompt) == (
            reference.apply_chat_template(part, add_generation_prompt=generation_prompt, tokenize=False)
        )


def test_a_template_that_refuses_or_breaks_is_a_request_error(model_file: Path) -> None:
    refusing = load_tokenizer(model_file, chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate"):
        refusing.apply_chat_template([{"role": "user", "content": "hi"}])
    with pytest.raises(RequestError) as caught:
        load_tokenizer(model_file).apply_chat_template([{"role": "user", "content": None}])
    assert caught.value.param == "messages"


def test_a_template_is_sandboxed(model_file: Path) -> None:
    nosy = load_tokenizer(model_file, chat_template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestError):
        nosy.apply_chat_template([])


def test_a_template_may_come_from_a_file_and_must_be_valid(model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    named = load_tokenizer(model_file, chat_template=str(tmp_path / "chat.jinja"))
    assert named.apply_chat_template([{"content": "x"}]) == "<|im_start|>x"
    with pytest.raises(ModelError, match="chat-template"):
        load_tokenizer(model_file, chat_template=str(tmp_path / "missing.jinja"))
    with pytest.raises(ModelError, match="not valid Jinja"):
        load_tokenizer(model_file, chat_template="{% if %}").apply_chat_template([])


def test_a_directory_loads_through_transformers_with_all_its_ends(reference, tokenizer, tmp_path: Path) -> None:
    reference.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    loaded = load_tokenizer(tmp_path)
    assert loaded.eos_ids == eos_token_ids(tmp_path) == (2, 0)
    for text in TEXTS:
        assert loaded.encode(text) == reference.encode(text)
    messages = [{"role": "user", "content": "hi"}]
    assert loaded.apply_chat_template(messages) == tokenizer.apply_chat_template(messages)


@pytest.mark.parametrize("size", [0, 3, 20, 1000, 500_000])
def test_a_cut_off_file_is_a_model_error_that_names_it(model_file: Path, tmp_path: Path, size: int) -> None:
    with model_file.open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(size))
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        load_tokenizer(tmp_path / "cut.gguf")


def test_a_chat_template_that_is_no_jinja_is_refused_at_load(model_file: Path) -> None:
    with pytest.raises(ModelError, match="not valid Jinja"):
        load_tokenizer(model_file, chat_template="{% bad")


def test_a_file_of_another_kind_is_a_model_error(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model at all, but long enough")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_gguf(tmp_path / "text.gguf")
    with pytest.raises(ModelError, match="--tokenizer"):
        load_tokenizer(tmp_path)
