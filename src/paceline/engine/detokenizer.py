"""Tokens to text, one at a time, and stop strings in that text."""

from __future__ import annotations

import codecs
from typing import Protocol

from paceline.core.params import SamplingParams
from paceline.engine.tokenizer import Tokenizer

_REPLACEMENT = "�"
_LONGEST_HOLD = 64  # tokens without a complete character after which invalid text is given out as it is


class Decoder(Protocol):
    """Text of a growing list of tokens: what `step` and the final `flush` return adds up to the text of all."""

    def step(self, token_id: int) -> str:
        """Characters that `token_id` completes; never a part of one."""
        ...

    def flush(self) -> str:
        """What is left at the end: incomplete characters, as U+FFFD."""
        ...


class ByteDecoder:
    """For vocabularies in which a token is its bytes: exact, and constant work per token."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """For any vocabulary: decodes the last few tokens with and without the new one, and gives the difference.

    The window starts at a token after which the text was complete, so leading-space rules apply alike to both.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []  # tokens given out that the next text depends on, then those held back
        self._given = 0  # how many of the window are given out
        self._given_text = ""

    def step(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        self._window.append(token_id)
        text = self._text()
        held = len(self._window) - self._given
        if text.endswith(_REPLACEMENT) and held < _LONGEST_HOLD:
            return ""
        return self._give(text)

    def flush(self) -> str:
        return self._give(self._text()) if len(self._window) > self._given else ""

    def _text(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip_special_tokens)

    def _give(self, text: str) -> str:
        new = text[len(self._given_text) :]
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._given_text = self._text()
        return new


def new_decoder(tokenizer: Tokenizer, skip_special_tokens: bool = True) -> Decoder:
    """The fastest decoder that is right for this vocabulary."""
    kind = ByteDecoder if tokenizer.is_byte_level else WindowDecoder
    return kind(tokenizer, skip_special_tokens)


class Detokenizer:
    """The text of one sequence as it grows, ended exactly where a stop string asks.

    A stop string ends the text at the first place where any of them is complete, whatever the tokens' borders; if
    several end there, the longest counts. Text that may be the beginning of a stop string is held back until the next
    tokens decide. Stop strings count only once `min_tokens` tokens exist.

    Attributes:
        stop_reason: the stop string that was found, or None.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._decoder = new_decoder(tokenizer, params.skip_special_tokens)
        self._stops = params.stop
        self._longest = max((len(stop) for stop in params.stop), default=0)
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._tokens = 0
        self._held = ""  # not yet released
        self._ready = ""  # released, not yet taken
        self._finished = False
        self.stop_reason: str | None = None

    def push(self, token_id: int) -> bool:
        """Add a token. True when a stop string is complete: then the sequence is over and takes no more tokens."""
        self._tokens += 1
        text = self._decoder.step(token_id)
        if not self._stops:
            self._ready += text
            return False
        if not text:
            return False
        known = len(self._held)
        self._held += text
        if self._tokens >= self._min_tokens and self._find_stop(known):
            return True
        keep = self._possible_stop()
        released = len(self._held) - keep
        self._ready += self._held[:released]
        self._held = self._held[released:]
        return False

    def finish(self) -> None:
        """The sequence is over: release everything."""
        if self._finished:
            return
        self._ready += self._held + self._decoder.flush()
        self._held = ""
        self._finished = True

    def take(self) -> str:
        """Text released since the last call."""
        text, self._ready = self._ready, ""
        return text

    def _find_stop(self, known: int) -> bool:
        """Look for the stop string that ends first, beyond the `known` characters searched before."""
        best: tuple[int, int, str] | None = None  # (end, start, stop)
        for stop in self._stops:
            start = self._held.find(stop, max(0, known + 1 - len(stop)))
            if start >= 0:
                found = (start + len(stop), start, stop)
                best = found if best is None else min(best, found)
        if best is None:
            return False
        end, start, self.stop_reason = best
        self._ready += self._held[: end if self._include_stop else start]
        self._held = ""
        self._finished = True
        return True

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        for length in range(min(len(self._held), self._longest - 1), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
