"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from paceline.engine.outputs import Completion, CompletionResult, SequenceDelta
from paceline.server.generation import Generation, RunningUsage, Usage
from paceline.server.logprobs import chat_logprobs, prompt_logprobs
from paceline.server.models import ChatBody
from paceline.server.prompts import PromptTokens, chat_tokens
from paceline.server.service import Service, TheService, body_schema
from paceline.server.streaming import EventStream, event, while_connected, whole_answer

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
async def chat_completions(request: Request, service: TheService) -> Response:
    body = await service.read(request, ChatBody)
    body.check_stream()
    params = body.params()
    prompt: PromptTokens = await chat_tokens(service.engine, body)
    generation = service.generation("chatcmpl", request, body, [prompt], params)
    answer = _Answer(service, body, generation)
    if body.stream:
        stream = EventStream(answer.events(), {"x-request-id": generation.id})
        return await while_connected(request.receive, stream.prime())
    results = await while_connected(request.receive, generation.whole())
    return whole_answer(generation, answer.whole(results[0]))


class _Answer:
    """Results of one request in the API's shapes."""

    def __init__(self, service: Service, body: ChatBody, generation: Generation) -> None:
        self.body = body
        self.generation = generation
        self.as_ids = bool(body.return_tokens_as_token_ids)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self.head = service.head(generation, kind)

    def whole(self, result: CompletionResult) -> dict[str, Any]:
        answer = {
            **self.head,
            "choices": [self._choice(completion) for completion in result.completions],
            "usage": Usage.of([result]).as_dict(),
        }
        if self.body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(result.prompt_logprobs)
        return answer

    def _choice(self, completion: Completion) -> dict[str, Any]:
        return {
            "index": completion.index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": chat_logprobs(completion.logprobs or [], self.as_ids) if self.body.logprobs else None,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        usage = RunningUsage(self.generation.prompts)
        started = False
        async with aclosing(self.generation.stream()) as outputs:
            async for index, output in outputs:
                usage.note(index, output)
                now = usage.now() if self.body.continuous_usage else None
                if not started:
                    started = True
                    for choice in range(self.generation.params.n):
                        yield event(self._wrap([self._opening(choice)], now))
                for delta in output.sequences:
                    if delta.text or delta.logprobs or delta.finish_reason is not None:
                        yield event(self._wrap([self._chunk(delta)], now))
        if self.body.include_usage:
            yield event(self._wrap([], usage.now()))
        self.generation.check_in_time()

    def _wrap(self, choices: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        chunk = {**self.head, "choices": choices}
        if self.body.include_usage:
            chunk["usage"] = usage.as_dict() if usage else None
        return chunk

    def _opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _chunk(self, delta: SequenceDelta) -> dict[str, Any]:
        logprobs = chat_logprobs(delta.logprobs or [], self.as_ids) if self.body.logprobs else None
        choice: dict[str, Any] = {
            "index": delta.index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return choice
