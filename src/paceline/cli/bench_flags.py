"""Flags of `paceline bench`, beside those that say what traffic there is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from paceline.cli.choices import OneOf
from paceline.cli.flag_sets import flag
from paceline.cli.limits import ReportedFlags
from paceline.cli.numbers import Span
from paceline.cli.outputs import OutputFlags
from paceline.errors import ConfigError


@dataclass(frozen=True)
class TargetFlags:
    """The server under test."""

    base_url: Annotated[str, flag("The server.")] = "http://127.0.0.1:8000"
    model: Annotated[str | None, flag("The model's name; default: the server's first.")] = None
    endpoint: Annotated[str, flag("completions (exact token ids) or chat."), OneOf("completions", "chat")] = (
        "completions"
    )
    api_key: Annotated[str | None, flag("Sent as a bearer token.", envvar="OPENAI_API_KEY")] = None
    ignore_eos: Annotated[bool, flag("Let every answer have the length asked for.", "--ignore-eos/--no-ignore-eos")] = (
        True
    )
    text_prompts: Annotated[bool, flag("Send words instead of token ids.", "--text-prompts")] = False
    vocab_size: Annotated[int, flag("Generated token ids stay below this."), Span(1, 2**31 - 1)] = 30000
    first_token: Annotated[int, flag("And are at least this."), Span(0, 2**31 - 2)] = 1000
    temperature: Annotated[float, flag("Of the sampling."), Span(0, 100)] = 0.0
    extra_body: Annotated[str | None, flag("JSON object with more fields of each request.")] = None

    def extra(self) -> dict[str, Any]:
        """The object of --extra-body; ConfigError where it is none."""
        try:
            value = json.loads(self.extra_body or "{}")
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ConfigError("--extra-body", self.extra_body, "a JSON object")
        return value


@dataclass(frozen=True)
class MeasureFlags(ReportedFlags, OutputFlags):
    """How to measure, and what to do with the figures."""

    concurrency: Annotated[
        int | None, flag("Closed loop: this many requests at a time, the next one when one ends."), Span(1, 10**6)
    ] = None
    max_concurrency: Annotated[
        int | None,
        flag("Open loop with at most this many at a time; waiting for a place counts as latency."),
        Span(1, 10**6),
    ] = None
    num_warmups: Annotated[int, flag("Requests sent before, and not counted."), Span(0, 10**6)] = 2
    duration: Annotated[float | None, flag("Seconds after which the run is cut off."), Span(above=0, most=10**9)] = None
    timeout: Annotated[float, flag("Seconds a request may take."), Span(above=0, most=10**9)] = 600.0
    max_lateness: Annotated[
        float, flag("Seconds of p99 send lateness above which a run is not valid."), Span(0, 10**9)
    ] = 0.25
    label: Annotated[str | None, flag("A name for the run.")] = None
    metadata: Annotated[list[str] | None, flag("KEY=VALUE kept with the result; may be given several times.")] = None
    quiet: Annotated[bool, flag("No progress display.", "--quiet")] = False

    def extra_facts(self) -> dict[str, str]:
        pairs = [one.partition("=") for one in self.metadata or []]
        for name, sign, _ in pairs:
            if not sign or not name:
                raise ConfigError("--metadata", name, "KEY=VALUE")
        return {name: value for name, _, value in pairs}


@dataclass(frozen=True)
class CompareFlags:
    """What is compared."""

    disciplines: Annotated[
        str | None, flag("Start `paceline serve` with each of these, such as static,orca,vllm,paceline.")
    ] = None
    base_urls: Annotated[str | None, flag("Or: servers that run already, as [LABEL=]URL,...")] = None
    rounds: Annotated[int, flag("Turns of each, one after the other: A B A B."), Span(1, 10**4)] = 2
    serve_model: Annotated[str, flag("The model to serve.")] = "smollm2-135m"
    serve_args: Annotated[str, flag("More flags of `paceline serve`, in one string.")] = ""


@dataclass(frozen=True)
class SweepFlags:
    """Which rates to try."""

    rates: Annotated[str | None, flag("Rates to run, such as 1,2,4,8; default: found by doubling and halving.")] = None
    start_rate: Annotated[float, flag("Requests per second to start from."), Span(above=0, most=10**6)] = 1.0
    good_share: Annotated[float, flag("Share of the requests that must meet the targets."), Span(above=0, most=1)] = (
        0.99
    )
    steps: Annotated[int, flag("Halvings of the interval once it is known."), Span(0, 100)] = 3
    max_rate: Annotated[float, flag("Never ask for more than this."), Span(above=0, most=10**6)] = 1000.0
