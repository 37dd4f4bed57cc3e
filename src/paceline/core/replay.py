"""Play a script through a discipline with a fake model and show every decision.

`python -m paceline.core.replay SCRIPT` needs numpy alone; `paceline replay SCRIPT` is the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.account import report
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.knob_values import parse_knobs
from paceline.core.plan import StepPlan, StepResult
from paceline.core.replay_flags import refuse_idle
from paceline.core.replay_picture import draw, panel
from paceline.core.replay_script import Script, ScriptRequest, parse_script, read_script, script_names
from paceline.core.replay_table import header, table_row
from paceline.core.request import FinishReason, Sequence, StepEvents
from paceline.core.scheduler import Scheduler
from paceline.errors import ConfigError, PacelineError, RequestError

STALL_STEPS = 64

Line = dict[str, Any]


def replay(
    script: dict[str, Any],
    discipline: str | None = None,
    blocks: bool = False,
    timing: bool = False,
    requests: bool = False,
    order: str | None = None,
    knobs: dict[str, Any] | None = None,
) -> Iterator[Line]:
    """One line per step, then {"summary": ...}. ConfigError for a script that makes no sense.

    `discipline`, `order`, `knobs`: in the place of the script's. `blocks`, `timing`: more in every line; `requests`:
    where each sequence's time went, in the summary.
    """
    return Replay(parse_script(script, discipline, order, knobs), blocks, timing, requests).lines()


class Replay:
    """A scheduler, the script's requests, and the step they have come to."""

    def __init__(self, script: Script, blocks: bool = False, timing: bool = False, requests: bool = False) -> None:
        self.script = script
        row = discipline_named(script.discipline, script.order).with_knobs(script.knobs, where="config.")
        with script_names():
            self.scheduler = Scheduler(script.scheduler, row)
        if script.quotas is not None:
            self.scheduler.set_quotas(script.quotas, 0.0)
        self._arrivals = sorted(script.requests, key=lambda request: request.arrival_step)
        self._aborts = [request for request in script.requests if request.abort_step is not None]
        self._by_id = {request.id: request for request in script.requests}
        self._blocks, self._timing = blocks, timing
        self._reports: dict[str, Line] | None = {} if requests else None  # by sequence id, in the order they ended
        self._idle = 0
        self._tokens = 0

    def lines(self) -> Iterator[Line]:
        step, scheduler = 0, self.scheduler
        stalled = False
        while step < self.script.max_steps and (self._arrivals or scheduler.has_work()) and not stalled:
            if not scheduler.has_work() and self._arrivals[0].arrival_step > step:
                step = self._arrivals[0].arrival_step
                continue
            line = self._step(step)
            moved = line["scheduled"] or line["aborted"] or line["finished"] or line["expired"] or self._wakes(step)
            self._idle = 0 if moved else self._idle + 1
            stalled = self._idle >= STALL_STEPS and bool(line["waiting"])
            yield line
            step += 1
        yield {"summary": self._summary(step, stalled)}

    def _wakes(self, step: int) -> bool:
        """Will a later step be decided otherwise only because it is later?"""
        decided = self.scheduler.step
        wake = None if decided is None else decided.wake
        return wake is not None and wake > step * self.script.step_time

    def _step(self, step: int) -> Line:
        scheduler, now = self.scheduler, step * self.script.step_time
        refused = self._arrive(step, now)
        aborted = self._abort(step, "before", now)
        begin = time.perf_counter_ns()
        plan = scheduler.schedule(now)
        scheduled_ns = time.perf_counter_ns() - begin
        line = self._decisions(step, plan)
        ended = scheduler.take_ended()
        self._report(ended)
        line["expired"] = {s.id: s.finish_detail for s in ended if s.finish_reason is FinishReason.EXPIRED}
        line["finished"] = [s.id for s in ended if s.finish_reason is not FinishReason.EXPIRED]
        line["refused"] = refused
        line["aborted"] = aborted + self._abort(step, "mid", now)
        result = StepResult(tokens=self._emit(plan)) if plan is not None else None
        begin = time.perf_counter_ns()
        events = scheduler.complete(result, now) if result is not None else None
        completed_ns = time.perf_counter_ns() - begin
        if isinstance(events, StepEvents):
            line["finished"] += [sequence.id for sequence in events.finished]
            self._report(events.finished)
        line["free_blocks_end"] = scheduler.kv.available
        if self._timing:
            line["us"] = [round(scheduled_ns / 1000, 1), round(completed_ns / 1000, 1)]
        return line

    def _arrive(self, step: int, now: float) -> dict[str, str]:
        refused = {}
        while self._arrivals and self._arrivals[0].arrival_step <= step:
            request = self._arrivals.pop(0)
            try:
                self.scheduler.add(request.request(), now)
            except RequestError as error:
                refused[request.id] = str(error)
        return refused

    def _abort(self, step: int, when: str, now: float) -> list[str]:
        due = [request.id for request in self._aborts if request.abort_step == step and request.abort_when == when]
        aborted = [sequence for request in due for sequence in self.scheduler.abort(request, now)]
        self._report(aborted)
        return [sequence.id for sequence in aborted]

    def _report(self, ended: list[Sequence]) -> None:
        if self._reports is not None:
            self._reports.update((sequence.id, report(sequence, self.scheduler.totals.steps)) for sequence in ended)

    def _emit(self, plan: StepPlan) -> np.typing.NDArray[np.int32]:
        """What the fake model samples: the script's next token of each request."""
        emitted = []
        for row, end in zip(
            plan.rows[plan.samples].tolist(), (plan.starts + plan.counts)[plan.samples].tolist(), strict=True
        ):
            sequence = self._in_row.get(row)
            request: ScriptRequest | None = self._by_id.get(sequence.request.id) if sequence is not None else None
            emitted.append(int(request.output[end - request.prompt.size]) if request is not None else 0)
        return np.array(emitted, np.int32)

    def _decisions(self, step: int, plan: StepPlan | None) -> Line:
        scheduler, decided = self.scheduler, self.scheduler.step
        assert decided is not None
        running = scheduler.running()
        self._in_row: dict[int, Sequence] = {sequence.row: sequence for sequence in running}
        scheduled = [] if plan is None else list(zip(plan.rows.tolist(), plan.counts.tolist(), strict=True))
        self._tokens += sum(count for _, count in scheduled)
        line: Line = {
            "step": step,
            "scheduled": [[self._in_row[row].id, count] for row, count in scheduled],
            "new": [sequence.id for sequence in decided.new],
            "resumed": [sequence.id for sequence in decided.resumed],
            "cached": decided.cached,
            "preempted": [[sequence.id, how] for sequence, how in decided.preempted],
            "swapped_in": decided.swapped_in,
            "swapped_out": decided.swapped_out,
            "finished": [],
            "aborted": [],
            "refused": {},
            "expired": {},
            "running": [sequence.id for sequence in running],
            "waiting": [sequence.id for sequence in (*scheduler.waiting, *scheduler.entrance.parked())],
            "why": scheduler.why(),
            "free_blocks": scheduler.kv.available,
            "free_blocks_end": 0,
        }
        if self._blocks:
            line["blocks"] = {sequence.id: scheduler.batch.blocks(sequence.row).tolist() for sequence in running}
        return line

    def _summary(self, steps: int, stalled: bool) -> Line:
        totals = self.scheduler.totals
        summary: Line = {
            "discipline": self.scheduler.discipline.name,
            "order": self.scheduler.discipline.order,
            "steps": steps,
            "scheduled_tokens": totals.scheduled_tokens,
            "generated_tokens": totals.generation_tokens,
            "finished": totals.finished,
            "preemptions": totals.preemptions,
            "recomputed_tokens": totals.recomputed_tokens,
            "cache_hit_tokens": totals.prefix_hit_tokens,
            "resumed_hit_tokens": totals.resumed_hit_tokens,
        }
        if totals.swapped_out_blocks:
            summary["swapped_out_blocks"] = totals.swapped_out_blocks
            summary["swapped_in_blocks"] = totals.swapped_in_blocks
        for name in ("aborted", "expired", "refused"):
            if count := getattr(totals, name):
                summary[name] = count
        if stalled:
            summary["stalled"] = True
        if self._reports is not None:
            now = steps * self.script.step_time
            live = {sequence.id: report(sequence, totals.steps, now) for sequence in self.scheduler.live()}
            summary["requests"] = {**self._reports, **live}
        return summary


def tabulated(script: dict[str, Any], disciplines: list[str], **more: Any) -> list[str]:
    """The lines of a table in which each discipline's schedule is a row; "": the script's own discipline.

    `more`: order and knobs, as of `replay`.
    """
    rows = [
        (played.scheduler.discipline.name, table_row(played.lines(), played.script.prompt_lengths()))
        for played in _under_each(script, disciplines, more)
    ]
    longest = max(len(row.steps) for _, row in rows)
    return [*header(longest, rows[0][1].done), *(row.markdown(name, longest) for name, row in rows)]


def drawn(script: dict[str, Any], disciplines: list[str], **more: Any) -> str:
    """An SVG in which each discipline's schedule is a panel; otherwise as `tabulated`."""
    return draw(
        [
            panel(
                played.scheduler.discipline.name,
                played.lines(),
                played.script.prompt_lengths(),
                played.script.scheduler.max_num_seqs,
            )
            for played in _under_each(script, disciplines, more)
        ]
    )


def _under_each(script: dict[str, Any], disciplines: list[str], more: dict[str, Any]) -> Iterator[Replay]:
    for name in disciplines:
        try:
            parsed = parse_script(script, name or None, **more)
        except ConfigError as error:
            setting = f"{error.setting} under {name}" if name else error.setting
            raise ConfigError(setting, error.value, error.allowed) from None
        yield Replay(parsed)


def main(arguments: list[str] | None = None) -> int:
    """Print the lines of a script's replay. Exit status 1 when it stalled, 2 for a script that makes no sense."""
    parser = argparse.ArgumentParser("paceline replay", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("script", help="JSON or JSON lines; - reads standard input")
    parser.add_argument("--discipline", help="a row of the table; default: the script's, else paceline")
    parser.add_argument("--order", help="who is next; default: the script's, else the discipline's own")
    parser.add_argument(
        "--knob", action="append", metavar="NAME=VALUE", help="in the place of the script's; repeatable"
    )
    parser.add_argument("--table", action="store_true", help="print one line of a table instead, of several rows (A,B)")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw it instead, several rows (A,B) below each other")
    parser.add_argument("--blocks", action="store_true", help="show every running sequence's block ids")
    parser.add_argument("--timing", action="store_true", help="show microseconds of schedule and complete")
    parser.add_argument("--requests", action="store_true", help="show in the summary where each request's time went")
    options = vars(parser.parse_args(arguments))
    script = options.pop("script")
    try:
        text = sys.stdin.read() if script == "-" else Path(script).read_text(encoding="utf-8")
        return show(text, **options)
    except (OSError, UnicodeDecodeError, PacelineError) as error:
        print(f"paceline replay: {error}", file=sys.stderr)
        return 2


def show(
    text: str,
    discipline: str | None,
    table: bool,
    picture: str | None,
    order: str | None = None,
    knob: list[str] | None = None,
    blocks: bool = False,
    timing: bool = False,
    requests: bool = False,
) -> int:
    """Print, or draw, the replay of a script's text, with `blocks` and so on in its lines; returns the exit status."""
    names = (discipline or "").split(",")
    refuse_idle(names, table, picture, {"--blocks": blocks, "--timing": timing, "--requests": requests})
    script = read_script(text)
    by_flags: dict[str, Any] = {"order": order, "knobs": parse_knobs(knob or ())}
    if picture is not None:
        svg = drawn(script, names, **by_flags)
        try:
            Path(picture).write_text(svg, encoding="utf-8")
        except OSError as error:
            raise ConfigError("--picture", picture, f"a file that can be written ({error.strerror})") from None
        return 0
    if table:
        print("\n".join(tabulated(script, names, **by_flags)))
        return 0
    line: Line = {}
    for line in replay(script, discipline, blocks, timing, requests, **by_flags):
        print(json.dumps(line))
    return int(line.get("summary", {}).get("stalled", False))


if __name__ == "__main__":
    sys.exit(main())
