"""What clients may send, as pydantic schemas. Strict: a number in quotes is a wrong type, not a number."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator

from paceline.core.params import MAX_LOGPROBS, SamplingParams
from paceline.errors import RequestError
from paceline.server.validation import shown

_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}
Prompt = Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)]  # read by `prompts.py`, whose messages are clearer

_PARAMS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


class Body(BaseModel):
    """Base of all bodies. Unknown fields are kept aside in `model_extra`."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    model: str | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Body):
    """What completions and chat have in common: OpenAI's fields, then vLLM's. None means: the default."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=256)  # the tenant

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)  # smaller is sooner
    queue_timeout: float | None = Field(None, gt=0, le=1e9)  # seconds it may wait to be started
    timeout: float | None = Field(None, gt=0, le=1e9)  # seconds it may take in all
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    return_tokens_as_token_ids: bool | None = None

    @field_validator("stop_token_ids")
    @classmethod
    def _few(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and len(value) > 1024:
            raise ValueError(f"takes at most 1024 token ids, got {len(value)}")
        return value

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def check_stream(self) -> None:
        """RequestError for what streams cannot do."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError(
                "prompt_logprobs are not given in streams; leave out one of the two", param="prompt_logprobs"
            )

    def sampling(
        self, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        """The engine's parameters. RequestError naming the field for any value out of range."""
        given = {name: getattr(self, name) for name in _PARAMS if getattr(self, name) is not None}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            **given,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs if self.prompt_logprobs is None else self.prompt_logprobs,
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logit_bias=self._bias(),
        )

    def _bias(self) -> dict[int, float]:
        bias = {}
        for token, value in (self.logit_bias or {}).items():
            if not (token.isascii() and token.isdigit() and len(token) < 12):
                raise RequestError(f"logit_bias keys must be token ids, got {token[:40]!r}", param="logit_bias")
            bias[int(token)] = value
        return bias


class CompletionBody(GenerationBody):
    prompt: Prompt
    max_tokens: int | None = 16
    logprobs: int | None = None
    echo: bool | None = None
    add_special_tokens: bool = True

    def params(self) -> SamplingParams:
        """The engine's parameters. With `echo`, `max_tokens` 0 asks for the prompt alone."""
        limit = 1 if self.prompt_alone else self.max_tokens  # that one token is dropped
        return self.sampling(limit, self.logprobs, self.logprobs if self.echo else None)

    @property
    def prompt_alone(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0


class Message(BaseModel):
    """One message of a chat. Other fields (`name`, `tool_call_id`, ...) are handed to the chat template."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str = Field(min_length=1, max_length=64)
    content: str | list[dict[str, Any]] | None = None

    def plain(self) -> dict[str, Any]:
        """As chat templates want it: content is one string."""
        return {**(self.model_extra or {}), "role": self.role, "content": self._text()}

    def _text(self) -> str:
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        texts = []
        for part in self.content:
            kind = part.get("type", "text")
            text = part.get("refusal" if kind == "refusal" else "text")
            if kind not in ("text", "refusal", "input_text", "output_text"):
                raise RequestError(
                    f"content parts of type {str(kind)[:40]!r} are not served; this model reads text only",
                    param="messages",
                )
            if not isinstance(text, str):
                raise RequestError(f"a content part of type {kind!r} needs a text, got {shown(text)}", param="messages")
            texts.append(text)
        return "\n".join(texts)


class ChatTemplateBody(Body):
    """What turns messages into a prompt."""

    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def plain_messages(self) -> list[dict[str, Any]]:
        if self.messages is None:
            raise RequestError("messages is required", param="messages")
        if not self.messages:
            raise RequestError("messages must not be empty", param="messages")
        if self.add_generation_prompt and self.continue_final_message:
            raise RequestError(
                "continue_final_message needs add_generation_prompt to be false",
                param="continue_final_message",
            )
        return [message.plain() for message in self.messages]


class ChatBody(ChatTemplateBody, GenerationBody):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def params(self) -> SamplingParams:
        """The engine's parameters. RequestError naming the field for any value out of range."""
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_LOGPROBS:
            raise RequestError(
                f"top_logprobs must be from 0 to {MAX_LOGPROBS}, got {self.top_logprobs}", param="top_logprobs"
            )
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        alternatives = (self.top_logprobs or 0) if self.logprobs else None
        newer = self.max_completion_tokens
        try:
            return self.sampling(self.max_tokens if newer is None else newer, alternatives)
        except RequestError as error:
            if error.param == "max_tokens" and newer is not None:
                message = str(error).replace("max_tokens", "max_completion_tokens", 1)
                raise RequestError(message, param="max_completion_tokens", code=error.code) from None
            raise


class TokenizeBody(ChatTemplateBody):
    """`/tokenize`, as vLLM has it: either `prompt` or `messages`."""

    prompt: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    tokens: list[int]


class ModelCard(BaseModel):
    """One entry of `/v1/models`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "paceline"
    root: str
    parent: str | None = None
    max_model_len: int
