"""Text to tokens and back, chat templates, and which tokens end a generation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders

from paceline.engine.chat_template import ChatTemplate
from paceline.engine.gguf_tokenizer import build_gguf_tokenizer
from paceline.errors import ModelError, RequestError
from paceline.exec.gguf_file import read_gguf


class Tokenizer:
    """One vocabulary, immutable after loading and safe to use from several threads.

    Attributes:
        vocab_size: token ids are below this. A model may have more rows than that (padding of its embedding).
        bos_id, eos_ids: begin token or None; every token that ends a generation.
        special_ids: tokens `skip_special_tokens` leaves out of decoded text.
        is_byte_level: every token stands for bytes whatever its neighbours (then `token_bytes` is exact).
    """

    def __init__(
        self,
        backend: FastTokenizer,
        *,
        eos_ids: tuple[int, ...] = (),
        bos_id: int | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        self._backend = backend
        self.eos_ids = eos_ids
        self.bos_id = bos_id
        self.chat_template = chat_template
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._added = {index: token.content for index, token in added.items()}
        self.is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; with `add_special_tokens`, those the model expects around any text (often a begin
        token, often none). RequestError for text that is not Unicode (unpaired surrogates)."""
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except TypeError as error:
            raise RequestError("the text is not valid Unicode: it has an unpaired surrogate", param="prompt") from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`. Bytes that are not UTF-8 become U+FFFD; ids out of the vocabulary are nothing."""
        known = [token for token in token_ids if 0 <= token < self.vocab_size]
        return str(self._backend.decode(known, skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token, None out of the vocabulary."""
        return None if token_id < 0 else self._backend.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty out of the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        token = self.token(token_id)
        if token is None:
            return b""
        if token_id in self._added and not self.is_byte_level:
            return token.encode()
        if self.is_byte_level:
            # As the byte-level decoder does it: a token with a foreign character stands for itself.
            if all(character in _BYTE_OF for character in token):
                return bytes(_BYTE_OF[character] for character in token)
            return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode()

    def token_text(self, token_id: int) -> str:
        """A token alone as text, for display; incomplete characters show as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text of a conversation; encode it with `add_special_tokens=False`.

        Raises RequestError (param "messages") when the model has no template or its template refuses the messages.
        """
        if self.chat_template is None:
            raise ChatTemplate.missing()
        return self.chat_template.render(messages, add_generation_prompt=add_generation_prompt, **variables)


def load_tokenizer(source: str | Path, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer of a model: a directory as `transformers` saves it, a hub id, or a .gguf file.

    `chat_template` (Jinja source, or the path of a file with it) replaces the model's own.
    Raises ModelError naming the file and the mend.
    """
    path = Path(source)
    tokenizer = _from_gguf(path) if path.suffix == ".gguf" else _from_transformers(source)
    if chat_template is not None:
        names = tokenizer.chat_template.names if tokenizer.chat_template else {}
        tokenizer.chat_template = ChatTemplate(_template_source(chat_template), names)
        tokenizer.chat_template.check()
    return tokenizer


def eos_token_ids(source: str | Path) -> tuple[int, ...]:
    """Every token that ends a generation, without loading the tokenizer: from the GGUF header, or from
    generation_config.json, else config.json, of a model directory. Empty where the model names none."""
    path = Path(source)
    if path.suffix == ".gguf":
        metadata = read_gguf(path).metadata
        return _unique(metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    for name in ("generation_config.json", "config.json"):
        config = _read_json(path / name)
        for part in (config, config.get("text_config") or {}):
            value = part.get("eos_token_id")
            if found := _unique(value if isinstance(value, list) else [value]):
                return found
    return ()


def _from_gguf(path: Path) -> Tokenizer:
    metadata = read_gguf(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    bos, eos = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    names = {
        name: tokens[index]
        for name, index in (("bos_token", bos), ("eos_token", eos))
        if index is not None and index < len(tokens)
    }
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        build_gguf_tokenizer(metadata, str(path)),
        eos_ids=eos_token_ids(path),
        bos_id=bos,
        chat_template=ChatTemplate(template, names) if template else None,
    )


def _from_transformers(source: str | Path) -> Tokenizer:
    from transformers import AutoTokenizer  # seconds to import; not needed for GGUF files

    try:
        loaded = AutoTokenizer.from_pretrained(str(source))
    except Exception as error:  # many kinds, by file and tokenizer class
        raise ModelError(
            f"{source}: no tokenizer could be loaded ({str(error).splitlines()[0] if str(error) else error!r}); "
            "give a directory or hub id that has one with --tokenizer"
        ) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, FastTokenizer):
        raise ModelError(
            f"{source}: its tokenizer ({type(loaded).__name__}) has no fast implementation; "
            "save it with a tokenizer.json, or name another with --tokenizer"
        )
    template = loaded.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    names = {name: text for name, text in loaded.special_tokens_map.items() if isinstance(text, str)}
    from_config = eos_token_ids(source) if Path(source).is_dir() else ()
    return Tokenizer(
        backend,
        eos_ids=from_config or _unique([loaded.eos_token_id]),
        bos_id=loaded.bos_token_id,
        chat_template=ChatTemplate(template, names) if template else None,
    )


def _template_source(text_or_path: str) -> str:
    if "{" in text_or_path:
        return text_or_path
    try:
        return Path(text_or_path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"--chat-template {text_or_path}: cannot be read ({error}); give a Jinja template or a file with one"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error}); download the file again") from error
    return content if isinstance(content, dict) else {}


def _unique(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(value for value in values if isinstance(value, int)))


def _byte_of() -> dict[str, int]:
    """Character to byte, as in GPT-2: printable Latin-1 characters are themselves, the rest start at U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


_BYTE_OF = _byte_of()
