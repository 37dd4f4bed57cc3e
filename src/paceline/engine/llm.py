"""Offline use: prompts in, whole results out, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

from paceline.core.params import SamplingParams
from paceline.engine import messages
from paceline.engine.config import EngineConfig
from paceline.engine.core_loop import IDLE_WAIT, EngineLoop
from paceline.engine.door import Door
from paceline.engine.outputs import CompletionResult
from paceline.engine.setup import build
from paceline.engine.streams import RequestStream
from paceline.engine.tenants import read_tenants
from paceline.engine.tokenizer import Tokenizer, load_tokenizer
from paceline.errors import EngineDeadError, RequestError

Prompt: TypeAlias = "str | Sequence[int]"
Conversation: TypeAlias = "Sequence[dict[str, Any]]"


class LLM:
    """A model and a scheduler without a server.

        with LLM("smollm2-135m") as llm:
            for result in llm.generate(["The sky is", "Grass is"], SamplingParams(max_tokens=8)):
                print(result.text)

    `settings` are the fields of EngineConfig. Raises ConfigError and ModelError. Not for several threads at once.
    """

    def __init__(self, model: str = EngineConfig.model, **settings: Any) -> None:
        self.config = EngineConfig(model=model, **settings)
        tenants = read_tenants(self.config.quotas)
        built = build(self.config)
        self.info = built.info
        self.tokenizer: Tokenizer = load_tokenizer(self.config.tokenizer or built.source, self.config.chat_template)
        self.max_model_len: int = built.info["max_model_len"]
        self._door = Door(self.tokenizer, built.info["vocab_size"], self.max_model_len, self.config.seed)
        self._loop: EngineLoop | None = EngineLoop(built.scheduler, built.executor)
        if tenants.path is not None:
            self._loop.handle(messages.SetQuotas(tenants.quotas))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[CompletionResult]:
        """Complete every prompt (a text, or token ids), all in one continuous batch; results in the order of prompts.

        `params`: one for all, or one per prompt. `progress` shows a bar when standard error is a terminal.
        Raises RequestError, before anything runs, when one of them can never be served.
        """
        if not isinstance(prompts, (str, Sequence)):
            raise RequestError(f"prompts must be texts or lists of token ids, got {prompts!r}", param="prompt")
        one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        each = cast("Sequence[Prompt]", [prompts] if one else prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in each]
        tokens = [self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in each]
        return self._run(texts, tokens, params, progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        **template_variables: Any,
    ) -> list[CompletionResult]:
        """Answer a conversation, or each of several, through the model's chat template.

        A message is `{"role": ..., "content": ...}`; `template_variables` reach the template as they are.
        """
        several = len(messages) > 0 and not isinstance(messages[0], dict)
        conversations: Sequence[Any] = messages if several else [messages]
        texts: list[str | None] = [
            self.tokenizer.apply_chat_template(conversation, **template_variables) for conversation in conversations
        ]
        tokens = [self.tokenizer.encode(text or "", add_special_tokens=False) for text in texts]
        return self._run(texts, tokens, params, progress)

    def close(self) -> None:
        """Let go of the model. Calling again does nothing; generating after it is an error."""
        if self._loop is not None:
            self._loop.close()
        self._loop = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> dict[str, Any]:
        """The scheduler's gauges and totals, flat."""
        return self._engine().stats()

    def _engine(self) -> EngineLoop:
        if self._loop is None:
            raise EngineDeadError("this LLM is closed; make a new one")
        return self._loop

    def _run(
        self,
        texts: Sequence[str | None],
        tokens: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
    ) -> list[CompletionResult]:
        loop = self._engine()
        each = self._params_of_each(params, len(tokens))
        streams = [self._admit(prompt, wanted) for prompt, wanted in zip(tokens, each, strict=True)]
        results = [
            CompletionResult.empty(stream.request_id, text, stream.prompt, stream.params.n)
            for stream, text in zip(streams, texts, strict=True)
        ]
        live = {stream.number: (stream, result) for stream, result in zip(streams, results, strict=True)}
        try:
            for stream in streams:
                _raise_refusal(loop.handle(stream.message()))
            with _bar(len(streams), progress) as advance:
                while live:
                    for stream in self._advance(loop, live):
                        advance(sum(len(sequence.tokens) for sequence in stream.sequences))
        finally:
            for number in live:  # only after an error or Ctrl-C
                loop.handle(messages.Abort(number))
        return results

    def _admit(self, prompt: Sequence[int], params: SamplingParams) -> RequestStream:
        config = self.config
        return self._door.admit(prompt, params, queue_timeout=config.queue_timeout, timeout=config.request_timeout)

    @staticmethod
    def _advance(loop: EngineLoop, live: dict[int, tuple[RequestStream, CompletionResult]]) -> Iterator[RequestStream]:
        """One step; gives the requests it finished."""
        step = loop.step()
        if step is None:
            time.sleep(IDLE_WAIT)  # a discipline may wait for more to batch
            return
        for output in step.outputs:
            if output.number not in live:
                continue
            stream, result = live[output.number]
            if stream.take(output):
                loop.handle(messages.Finish(output.number, output.index))
            if stream.error is not None:
                raise stream.error
            if (news := stream.output()) is not None:
                result.add(news)
            if stream.finished:
                del live[output.number]
                yield stream

    @staticmethod
    def _params_of_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if params is None:
            params = SamplingParams()
        if isinstance(params, SamplingParams):
            return [params] * count
        if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
            raise RequestError(f"params must be SamplingParams, or one for each prompt, got {params!r}", param="params")
        if len(params) != count:
            raise RequestError(f"{count} prompts came with {len(params)} parameter sets; give one each, or one for all")
        return list(params)


def _raise_refusal(answers: Sequence[messages.FromEngine]) -> None:
    for answer in answers:
        if isinstance(answer, messages.Refused):
            raise RequestError(
                answer.message,
                param=answer.param,
                code=answer.code,
                status=answer.status,
                retry_after=answer.retry_after,
            )


@contextmanager
def _bar(total: int, wanted: bool) -> Iterator[Any]:
    """Gives `advance(generated tokens)`, to be called once per finished request."""
    if not wanted:
        yield lambda tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = [
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("generating", total=total, rate="")
        generated = 0

        def advance(tokens: int) -> None:
            nonlocal generated
            generated += tokens
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{generated / elapsed:,.0f} tokens/s" if elapsed else ""
            bar.update(task, advance=1, rate=rate)

        yield advance
