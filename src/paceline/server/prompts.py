"""From what a body says to token ids: the four forms of a completion's prompt, and the messages of a chat."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.engine.async_engine import AsyncEngine
from paceline.errors import RequestError
from paceline.server.models import ChatTemplateBody
from paceline.server.validation import shown

MAX_PROMPTS = 1024
_RESERVED = frozenset({"messages", "add_generation_prompt"})
_MOST_CHARACTERS_PER_TOKEN = 256


class PromptTokens(NamedTuple):
    """One prompt, ready for the engine."""

    text: str | None  # None when it came as token ids
    token_ids: list[int]


def split_prompts(prompt: Any) -> list[str | list[int]]:
    """The prompts of a completion: a string, strings, token ids, or lists of token ids. RequestError for all else."""
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif not isinstance(prompt, list):
        raise _wrong_form(prompt)
    elif prompt and _is_tokens(prompt):
        prompts = [prompt]
    else:
        prompts = prompt
    if not prompts:
        raise RequestError("prompt must not be empty", param="prompt")
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"prompt takes at most {MAX_PROMPTS} prompts, got {len(prompts)}", param="prompt")
    kind = type(prompts[0])
    for one in prompts:
        if type(one) is not kind or not (kind is str or (kind is list and _is_tokens(one))):
            raise _wrong_form(prompt if kind is int else one)
        if not one:
            raise RequestError("prompt must not be empty", param="prompt")
    return prompts


async def to_tokens(engine: AsyncEngine, prompt: str | list[int], add_special_tokens: bool) -> PromptTokens:
    """Tokens of one prompt, checked against the vocabulary and the context."""
    if isinstance(prompt, str):
        _check_length_of_text(engine, prompt)
        token_ids = await engine.encode(prompt, add_special_tokens=add_special_tokens)
        if not token_ids:
            raise RequestError("prompt has no tokens", param="prompt")
        check_length(engine, len(token_ids))
        return PromptTokens(prompt, token_ids)
    check_length(engine, len(prompt))
    for token in prompt:
        if not 0 <= token < engine.vocab_size:
            raise RequestError(
                f"prompt has token id {token}; the vocabulary goes from 0 to {engine.vocab_size - 1}", param="prompt"
            )
    return PromptTokens(None, prompt)


def check_length(engine: AsyncEngine, tokens: int, param: str = "prompt") -> None:
    """RequestError when a prompt leaves no room for a single new token."""
    if tokens >= engine.max_model_len:
        raise RequestError(
            f"the prompt has {tokens} tokens; this server's context is {engine.max_model_len} tokens, "
            f"so a prompt may have at most {engine.max_model_len - 1}",
            param=param,
            code="context_length_exceeded",
        )


def chat_text(engine: AsyncEngine, body: ChatTemplateBody) -> str:
    """The prompt text of a conversation. With `continue_final_message` it ends inside the last message, open."""
    messages = body.plain_messages()
    extra = {name: value for name, value in (body.chat_template_kwargs or {}).items() if name not in _RESERVED}
    generate = body.add_generation_prompt
    text: str = engine.tokenizer.apply_chat_template(messages, add_generation_prompt=generate, **extra)
    if not body.continue_final_message:
        return text
    final = messages[-1]["content"].rstrip()
    end = text.rfind(final)
    if not final or end < 0:
        raise RequestError(
            "continue_final_message needs a last message whose text the chat template keeps as it is",
            param="continue_final_message",
        )
    return text[: end + len(final)]


async def chat_tokens(engine: AsyncEngine, body: ChatTemplateBody) -> PromptTokens:
    """Tokens of a conversation, checked against the context."""
    text = chat_text(engine, body)
    _check_length_of_text(engine, text, "messages")
    token_ids = await engine.encode(text, add_special_tokens=bool(body.add_special_tokens))
    check_length(engine, len(token_ids), "messages")
    return PromptTokens(text, token_ids)


def _check_length_of_text(engine: AsyncEngine, text: str, param: str = "prompt") -> None:
    # A text this long cannot fit whatever its tokens are; encoding it would only cost time.
    if len(text) > _MOST_CHARACTERS_PER_TOKEN * engine.max_model_len:
        raise RequestError(
            f"the prompt has {len(text)} characters, far over this server's context of {engine.max_model_len} tokens",
            param=param,
            code="context_length_exceeded",
        )


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def _wrong_form(value: Any) -> RequestError:
    return RequestError(
        "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids; "
        f"got {shown(value)}",
        param="prompt",
    )
