"""Text is complete, exact, and ends where it should, however the tokens fall."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from paceline.core.params import SamplingParams
from paceline.engine.detokenizer import Detokenizer, WindowDecoder, new_decoder
from paceline.engine.tokenizer import Tokenizer

token_lists = st.lists(st.integers(0, 49151), max_size=40)
texts = st.text(max_size=60)


@given(token_lists, st.booleans())
def test_deltas_of_any_tokens_add_up_to_the_whole_text(tokenizer: Tokenizer, tokens: list[int], skip: bool) -> None:
    decoder = new_decoder(tokenizer, skip)
    text = "".join(decoder.step(token) for token in tokens) + decoder.flush()
    assert text == tokenizer.decode(tokens, skip_special_tokens=skip)


@given(texts)
def test_deltas_of_valid_text_never_hold_a_broken_character(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    text = tokenizer.decode(tokens)  # this vocabulary lacks a few bytes
    detokenizer = Detokenizer(tokenizer, SamplingParams())
    deltas = []
    for token in tokens:
        detokenizer.push(token)
        deltas.append(detokenizer.take())
    detokenizer.finish()
    deltas.append(detokenizer.take())
    assert "".join(deltas) == text
    if "�" not in text:
        assert not any("�" in delta for delta in deltas)


@given(texts)
def test_the_window_decoder_agrees_with_the_byte_decoder_on_text(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    text = tokenizer.decode(tokens)
    assume("�" not in text)
    decoder = WindowDecoder(tokenizer, True)
    assert "".join(decoder.step(token) for token in tokens) + decoder.flush() == text


def sentencepiece_like() -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁cat", "s", "at", "é", "日"]
    backend = FastTokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


@given(st.lists(st.sampled_from(["▁the", "▁cat", "s", "at", "é", "😀", "ß"]), max_size=20))
def test_byte_fallback_vocabularies_stream_whole_characters(words: list[str]) -> None:
    tokenizer = sentencepiece_like()
    tokens: list[int] = []
    for word in words:
        token = tokenizer._backend.token_to_id(word)
        tokens += [token] if token is not None else [byte + 1 for byte in word.encode()]
    decoder = new_decoder(tokenizer)
    assert isinstance(decoder, WindowDecoder)
    deltas = [decoder.step(token) for token in tokens]
    assert not any("�" in delta for delta in deltas)
    assert "".join(deltas) + decoder.flush() == tokenizer.decode(tokens) == "".join(words).replace("▁", " ").lstrip(" ")


def first_stop(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """The rule, one character at a time."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


stop_lists = st.lists(st.text(alphabet="abc é日", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


@settings(max_examples=300)
@given(st.text(alphabet="abc é日", max_size=30), stop_lists, st.booleans(), st.data())
def test_stop_strings_cut_the_text_at_the_first_that_is_complete(
    tokenizer: Tokenizer, text: str, stops: tuple[str, ...], include: bool, data: st.DataObject
) -> None:
    # Cut into pieces at random, so that stop strings lie across token borders in every way.
    pieces, rest = [], text
    while rest:
        size = data.draw(st.integers(1, 4))
        pieces.append(rest[:size])
        rest = rest[size:]
    tokens = [token for piece in pieces for token in tokenizer.encode(piece)]
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=stops, include_stop_str_in_output=include))
    released = ""
    expected, reason = first_stop(text, stops, include)
    for token in tokens:
        stopped = detokenizer.push(token)
        released += detokenizer.take()
        assert expected.startswith(released)
        if stopped:
            break
    detokenizer.finish()
    released += detokenizer.take()
    assert (released, detokenizer.stop_reason) == (expected, reason)


def test_text_is_released_as_soon_as_no_stop_string_can_begin_in_it(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=("END",)))
    released = []
    for token in [*tokenizer.encode("a"), *tokenizer.encode("E"), *tokenizer.encode("N"), *tokenizer.encode("x")]:
        detokenizer.push(token)
        released.append(detokenizer.take())
    assert released == ["a", "", "", "ENx"]


@pytest.mark.parametrize("min_tokens, expected", [(0, "a"), (2, "a"), (4, "abaa")])
def test_stop_strings_count_only_after_min_tokens(tokenizer: Tokenizer, min_tokens: int, expected: str) -> None:
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=("b",), min_tokens=min_tokens))
    for token in [tokenizer.encode(letter)[0] for letter in "abaabb"]:
        if detokenizer.push(token):
            break
    assert detokenizer.take() == expected


def test_an_incomplete_character_at_the_end_is_flushed_as_a_replacement(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("😀")
    assert len(tokens) > 1
    detokenizer = Detokenizer(tokenizer, SamplingParams())
    detokenizer.push(tokens[0])
    assert detokenizer.take() == ""
    detokenizer.finish()
    assert detokenizer.take() == "�"
