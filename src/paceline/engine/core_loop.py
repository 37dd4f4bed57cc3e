"""The one loop around a scheduler and an executor: schedule, execute, complete."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Protocol

from paceline.core.account import report
from paceline.core.plan import StepPlan, StepResult, TokenLogprobs
from paceline.core.quotas import Quotas
from paceline.core.request import FinishReason, Request, Sequence
from paceline.core.scheduler import Scheduler
from paceline.engine import messages, rescue
from paceline.errors import RequestError

logger = logging.getLogger(__name__)

IDLE_WAIT = 0.02  # seconds to wait for messages when something waits but nothing can run
FAILURES_BEFORE_ERROR = 2  # steps that fail in a row before their requests are given up

SAVE_SECONDS = 20.0  # seconds at most to write cached K/V to disk at the end

Receive = Callable[[float | None], Iterable[messages.ToEngine]]
Send = Callable[[messages.FromEngine], None]


class Executor(Protocol):
    """What the loop needs of an executor."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one forward pass."""
        ...


class EngineLoop:
    """Single-threaded: takes messages in, makes steps, gives outputs out. The LLM class steps it by hand, the engine
    process lets it `run`."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Callable[[], float] = time.monotonic) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._clock = clock
        self._numbers: dict[str, int] = {}  # request id -> number, of live requests
        self._requests: dict[int, Request] = {}
        self._open: dict[int, set[int]] = {}  # number -> indexes of unfinished sequences
        self._rows: dict[int, Sequence] = {}  # row of the batch -> its latest sequence
        self._sequences: dict[str, Sequence] = {}
        self._unreported: set[str] = set()  # sequences that gave no token yet
        self._prompt_logprobs: dict[int, dict[int, TokenLogprobs]] = {}  # number -> position -> logprobs
        self._last: dict[str, messages.SequenceOutput] = {}  # last tokens of sequences that end with their batch
        self._accounts: list[messages.Account] = []  # of sequences that ended and were not reported yet
        self._quotas: Quotas | None = None
        self._failures = 0
        self._busy_seconds = 0.0
        self._execute_seconds = 0.0
        self.stopped = False

    # -- messages ---------------------------------------------------------------------------------------------------

    def run(self, receive: Receive, send: Send) -> None:
        """Serve until a Shutdown message. `receive(timeout)` gives the messages that are there, waiting up to
        `timeout` seconds for the first (None: as long as it takes; 0: not at all)."""
        waiting: float | None = None
        while not self.stopped:
            for message in receive(waiting):
                for answer in self.handle(message):
                    send(answer)
            if self.stopped or not self.scheduler.has_work():
                waiting = None
                continue
            output = self.step()
            waiting = self.idle_wait() if output is None else 0.0
            if output is not None and (output.outputs or output.accounts):
                send(output)

    def close(self) -> None:
        """The end: save what is cached for the next start, where there is a disk tier, and let the executor go."""
        begin = self._clock()
        try:
            while self._clock() - begin < SAVE_SECONDS and (plan := self.scheduler.flush(self._clock())) is not None:
                self.scheduler.complete(self.executor.execute(plan), self._clock())
        except Exception:  # what was saved by then is good
            logger.exception("not all cached K/V could be written to disk")
        if (close := getattr(self.executor, "close", None)) is not None:
            close()

    def idle_wait(self) -> float:
        """Seconds to wait when nothing could run: until the scheduler would decide otherwise, and not for long."""
        step = self.scheduler.step
        if step is None or step.wake is None:
            return IDLE_WAIT
        return min(max(step.wake - self._clock(), 0.0), IDLE_WAIT)

    def handle(self, message: messages.ToEngine) -> list[messages.FromEngine]:
        """Act on one message; returns the answers to it."""
        now = self._clock()
        if isinstance(message, messages.Add):
            return self._add(message, now)
        if isinstance(message, messages.Abort):
            if message.number in self._requests:
                for sequence in self.scheduler.abort(self._requests[message.number].id, now):
                    self._settle(message.number, sequence)
                self._forget(message.number)
            return self._settled()
        elif isinstance(message, messages.Finish):
            self._finish(message.number, message.index, FinishReason.STOP, now)
            return self._settled()
        elif isinstance(message, messages.SetQuotas):
            self._quotas = message.quotas
            self.scheduler.set_quotas(message.quotas, now)
        elif isinstance(message, messages.AskStats):
            return [messages.Stats(message.ticket, self.stats())]
        elif isinstance(message, messages.Explain):
            return [messages.Explained(message.ticket, self.explain(message.numbers))]
        elif isinstance(message, messages.Shutdown):
            self.stopped = True
        return []

    def _add(self, message: messages.Add, now: float) -> list[messages.FromEngine]:
        request = message.request(now)
        try:
            sequences = self.scheduler.add(request, now)
        except RequestError as error:
            refusal = (str(error), error.param, error.code, error.status, error.retry_after)
            return [messages.Refused(message.number, *refusal)]
        except Exception as error:  # a defect of ours; it must not end everybody else's requests
            logger.exception("request %s could not be taken in", request.id)
            text = f"the engine failed on this request: {type(error).__name__}: {error}"
            refused = messages.Refused(message.number, text, None, "engine_error", 500)
            return [messages.StepOutput(self._renew()), *self._settled(), refused]
        self._requests[message.number] = request
        self._numbers[request.id] = message.number
        self._open[message.number] = {sequence.index for sequence in sequences}
        self._sequences.update((sequence.id, sequence) for sequence in sequences)
        self._unreported.update(sequence.id for sequence in sequences)
        if request.params.prompt_logprobs is not None:
            self._prompt_logprobs[message.number] = {}
        return []

    def _finish(self, number: int, index: int, reason: FinishReason, now: float) -> None:
        request = self._requests.get(number)
        if request is None or index not in self._open[number]:
            return
        for sequence in self.scheduler.sequences(request.id):
            if sequence.index == index:
                self.scheduler.finish(sequence.id, reason, now)
                self._close(number, sequence)
                return

    def _close(self, number: int, sequence: Sequence) -> None:
        """A sequence is over; the request too when it was the last."""
        self._settle(number, sequence)
        self._sequences.pop(sequence.id, None)
        self._unreported.discard(sequence.id)
        self._last.pop(sequence.id, None)
        self._open[number].discard(sequence.index)
        if not self._open[number]:
            self._forget(number)

    def _settle(self, number: int, sequence: Sequence) -> None:
        self._accounts.append(messages.Account(number, sequence.index, report(sequence, self.scheduler.totals.steps)))

    def _settled(self) -> list[messages.FromEngine]:
        accounts, self._accounts = self._accounts, []
        return [messages.StepOutput([], accounts)] if accounts else []

    def _forget(self, number: int) -> None:
        request = self._requests.pop(number)
        del self._numbers[request.id], self._open[number]
        self._prompt_logprobs.pop(number, None)
        for sequence in self._sequences_of(request):
            self._sequences.pop(sequence, None)
            self._unreported.discard(sequence)
            self._last.pop(sequence, None)

    @staticmethod
    def _sequences_of(request: Request) -> list[str]:
        return [request.id, *(f"{request.id}#{index}" for index in range(1, request.params.n))]

    # -- steps ------------------------------------------------------------------------------------------------------

    def step(self) -> messages.StepOutput | None:
        """One round of the loop. None when nothing could run."""
        outputs = self._round()
        accounts, self._accounts = self._accounts, []
        return None if outputs is None and not accounts else messages.StepOutput(outputs or [], accounts)

    def _round(self) -> list[messages.SequenceOutput] | None:
        begin = self._clock()
        try:
            plan = self.scheduler.schedule(begin)
        except Exception as error:
            return self._schedule_failed(error)
        ended = [self._ended(sequence) for sequence in self.scheduler.take_ended()]
        if plan is None:
            return ended or None
        for entered in plan.entered:
            self._rows[entered.row] = self._sequences[entered.sequence_id]
        before = self._clock()
        try:
            result = self.executor.execute(plan)
        except Exception as error:
            rows = plan.rows.tolist()
            self.scheduler.fail(self._clock())
            return ended + self._step_failed([self._rows[row] for row in rows], error)
        self._failures = 0
        self._execute_seconds += self._clock() - before
        if result.prompt_logprobs:
            self._note_prompt_logprobs(result.prompt_logprobs)
        now = self._clock()
        outputs = ended + self._outputs(result, now)
        self._busy_seconds += self._clock() - begin
        return outputs

    def _ended(self, sequence: Sequence) -> messages.SequenceOutput:
        """The scheduler ended it: what comes out with that."""
        number, reason = self._numbers[sequence.request.id], sequence.finish_reason
        assert reason is not None
        output = self._last.get(sequence.id) or messages.SequenceOutput(number, sequence.index, [])
        output.finish_reason, output.stop_token = reason.value, sequence.stop_token
        if reason is FinishReason.EXPIRED:
            output.error, output.queue_seconds = sequence.finish_detail, queue_seconds(sequence)
        self._close(number, sequence)
        return output

    def _outputs(self, result: StepResult, now: float) -> list[messages.SequenceOutput]:
        events = self.scheduler.complete(result, now)
        outputs: list[messages.SequenceOutput] = []
        logprobs = result.logprobs
        for sequence, token, sampled in zip(
            events.sequences.tolist(), events.tokens.tolist(), events.sampled.tolist(), strict=True
        ):
            number = self._numbers[sequence.request.id]
            output = messages.SequenceOutput(number, sequence.index, [token])
            if logprobs is not None and (entry := logprobs[sampled]) is not None:
                output.logprobs = [entry]
            if sequence.id in self._unreported:
                self._unreported.remove(sequence.id)
                output.cached_tokens, output.queue_seconds = sequence.cached_tokens, queue_seconds(sequence)
                if sequence.index == 0 and (noted := self._prompt_logprobs.pop(number, None)) is not None:
                    output.prompt_logprobs = [noted.get(position) for position in range(sequence.prompt_length)]
            if sequence.finish_reason is not None:  # its last token comes out with its end, now or with the batch's
                self._last[sequence.id] = output
            else:
                outputs.append(output)
        outputs += [self._ended(sequence) for sequence in events.finished]
        return outputs

    def _note_prompt_logprobs(self, found: dict[int, list[tuple[int, TokenLogprobs]]]) -> None:
        for row, entries in found.items():
            sequence = self._rows[row]
            number = self._numbers.get(sequence.request.id)
            if sequence.index == 0 and number is not None and number in self._prompt_logprobs:
                self._prompt_logprobs[number].update(entries)

    def _step_failed(self, sequences: list[Sequence], error: Exception) -> list[messages.SequenceOutput]:
        """The step was undone and will be tried again; after failures in a row, the requests of these sequences are
        given up, so that one bad request cannot hold up all others for good."""
        self._failures += 1
        logger.exception("step failed (%d in a row)", self._failures)
        if self._failures < FAILURES_BEFORE_ERROR:
            return []
        self._failures = 0
        outputs = []
        now = self._clock()
        for request in {id(sequence.request): sequence.request for sequence in sequences}.values():
            number = self._numbers.get(request.id)
            if number is None:
                continue
            for index in sorted(self._open[number]):
                reason = FinishReason.ERROR
                text = f"the engine failed on this request: {type(error).__name__}: {error}"
                outputs.append(messages.SequenceOutput(number, index, [], reason.value, error=text))
                self._finish(number, index, reason, now)
        return outputs

    def _schedule_failed(self, error: Exception) -> list[messages.SequenceOutput]:
        """As for a step that could not be executed."""
        blamed = rescue.suspects(self.scheduler)
        return self._renew() + self._step_failed(blamed, error)

    def _renew(self) -> list[messages.SequenceOutput]:
        """A new scheduler takes over all that is unfinished. Returns what had ended and was not reported."""
        old, now = self.scheduler, self._clock()
        self.scheduler = rescue.start_again(old)
        if self._quotas is not None:
            self.scheduler.set_quotas(self._quotas, now)
        ended = [self._ended(sequence) for sequence in old.take_ended()]
        for number, request in list(self._requests.items()):
            ended += self._take_over(old, number, request, now)
        return ended

    def _take_over(self, old: Scheduler, number: int, request: Request, now: float) -> list[messages.SequenceOutput]:
        """Give a request to the new scheduler, and end what it does not take: sequences that had all their tokens."""
        sequences = old.sequences(request.id)
        done = [sequence for sequence in sequences if sequence.finish_reason is not None]
        ended = [self._ended(sequence) for sequence in done]
        if number not in self._requests:
            return ended
        again = rescue.resumed(old, request, [one for one in sequences if one not in done], now)
        self._requests[number] = again
        try:
            taken = self.scheduler.add(again, now)
        except RequestError as error:  # tenants and quotas have changed since it came
            lost = sorted(self._open[number])
            self._forget(number)
            reason = FinishReason.ERROR.value
            return ended + [messages.SequenceOutput(number, index, [], reason, error=str(error)) for index in lost]
        self._sequences.update((sequence.id, sequence) for sequence in taken)
        return ended

    def explain(self, numbers: list[int] | None) -> dict[int, dict[int, dict[str, Any]]]:
        """What becomes of live requests: number -> index -> a sequence's report, with `why` it waits."""
        now, reasons = self._clock(), self.scheduler.why()
        wanted = self._requests if numbers is None else [number for number in numbers if number in self._requests]
        found: dict[int, dict[int, dict[str, Any]]] = {}
        for number in wanted:
            found[number] = {}
            for sequence in self.scheduler.sequences(self._requests[number].id):
                lines = report(sequence, self.scheduler.totals.steps, now)
                lines["generated_tokens"] = self.scheduler.length(sequence) - sequence.prompt_length
                if sequence.id in reasons:
                    lines["why"] = reasons[sequence.id]
                found[number][sequence.index] = lines
        return found

    def stats(self) -> dict[str, Any]:
        """The scheduler's counts, flat, and where the loop's time went."""
        stats = asdict(self.scheduler.stats())
        stats.update(stats.pop("totals"))
        stats["busy_seconds"] = self._busy_seconds
        stats["execute_seconds"] = self._execute_seconds
        return stats


def queue_seconds(sequence: Sequence) -> float | None:
    """How long it waited to be started; None: it was not."""
    return None if sequence.first_scheduled is None else sequence.first_scheduled - sequence.submitted
