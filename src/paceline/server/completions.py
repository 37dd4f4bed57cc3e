"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from paceline.engine.outputs import CompletionResult, PositionLogprobs, RequestOutput, SequenceDelta
from paceline.server.generation import Generation, RunningUsage, Usage
from paceline.server.logprobs import completion_logprobs, prompt_logprobs
from paceline.server.models import CompletionBody
from paceline.server.prompts import split_prompts, to_tokens
from paceline.server.service import Service, TheService, body_schema
from paceline.server.streaming import EventStream, event, while_connected, whole_answer

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
async def completions(request: Request, service: TheService) -> Response:
    body = await service.read(request, CompletionBody)
    body.check_stream()
    params = body.params()
    prompts = [
        await to_tokens(service.engine, prompt, body.add_special_tokens) for prompt in split_prompts(body.prompt)
    ]
    generation = service.generation("cmpl", request, body, prompts, params)
    answer = _Answer(service, body, generation)
    if body.stream:
        stream = EventStream(answer.events(), {"x-request-id": generation.id})
        return await while_connected(request.receive, stream.prime())
    results = await while_connected(request.receive, generation.whole())
    return whole_answer(generation, answer.whole(results))


class _Answer:
    """Results of one request in the API's shapes."""

    def __init__(self, service: Service, body: CompletionBody, generation: Generation) -> None:
        self.body = body
        self.generation = generation
        self.tokenizer = service.engine.tokenizer
        self.n = generation.params.n
        self.as_ids = bool(body.return_tokens_as_token_ids)
        self.head = service.head(generation, "text_completion")

    def whole(self, results: list[CompletionResult]) -> dict[str, Any]:
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        usage = Usage.of(results, count_generated=not self.body.prompt_alone)
        return {**self.head, "choices": [one for some in choices for one in some], "usage": usage.as_dict()}

    def _choice(self, prompt_index: int, result: CompletionResult) -> list[dict[str, Any]]:
        echo = self._echo(prompt_index)
        shown_prompt = prompt_logprobs(result.prompt_logprobs) if self.body.prompt_logprobs is not None else None
        choices = []
        for completion in result.completions:
            positions: list[PositionLogprobs | None] = list(completion.logprobs or [])
            text, reason, stop = completion.text, completion.finish_reason, completion.stop_reason
            if self.body.prompt_alone:
                positions, text, reason, stop = [], "", "length", None
            if self.body.echo:
                positions = list(result.prompt_logprobs or []) + positions
            choices.append(
                {
                    "index": prompt_index * self.n + completion.index,
                    "text": echo + text,
                    "logprobs": self._logprobs(positions, prompt_index, 0),
                    "finish_reason": reason,
                    "stop_reason": stop,
                    "prompt_logprobs": shown_prompt,
                }
            )
        return choices

    async def events(self) -> AsyncGenerator[bytes, None]:
        usage = RunningUsage(self.generation.prompts)
        lengths: dict[int, int] = {}  # characters of each choice so far, for text_offset
        async with aclosing(self.generation.stream()) as outputs:
            async for index, output in outputs:
                usage.note(index, output)
                for delta in output.sequences:
                    choice = self._chunk(index, output, delta, lengths)
                    if choice is not None:
                        yield event(self._wrap([choice], usage.now() if self.body.continuous_usage else None))
        if self.body.include_usage:
            total = usage.now()
            if self.body.prompt_alone:
                total.completion_tokens = 0
            yield event(self._wrap([], total))
        self.generation.check_in_time()

    def _wrap(self, choices: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        chunk = {**self.head, "choices": choices}
        if self.body.include_usage:
            chunk["usage"] = usage.as_dict() if usage else None
        return chunk

    def _chunk(
        self, prompt_index: int, output: RequestOutput, delta: SequenceDelta, lengths: dict[int, int]
    ) -> dict[str, Any] | None:
        index = prompt_index * self.n + delta.index
        text = "" if self.body.prompt_alone else delta.text
        positions: list[PositionLogprobs | None] = [] if self.body.prompt_alone else list(delta.logprobs or [])
        first = index not in lengths
        offset = lengths.get(index, 0)
        if first and self.body.echo:
            text = self._echo(prompt_index) + text
            positions = list(output.prompt_logprobs or []) + positions
        if not text and not positions and delta.finish_reason is None:
            return None
        logprobs = self._logprobs(positions, prompt_index, offset)
        lengths[index] = offset + sum(len(name) for name in (logprobs or {}).get("tokens", ()))
        reason = "length" if self.body.prompt_alone and delta.finish_reason else delta.finish_reason
        stop = None if self.body.prompt_alone else delta.stop_reason
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, "stop_reason": stop}

    def _echo(self, prompt_index: int) -> str:
        if not self.body.echo:
            return ""
        prompt = self.generation.prompts[prompt_index]
        return prompt.text if prompt.text is not None else self.tokenizer.decode(prompt.token_ids)

    def _logprobs(
        self, positions: list[PositionLogprobs | None], prompt_index: int, offset: int
    ) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        first = self.generation.prompts[prompt_index].token_ids[0]
        return completion_logprobs(positions, offset, self.as_ids, self.tokenizer.token_text(first))
