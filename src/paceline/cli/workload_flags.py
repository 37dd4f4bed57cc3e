"""The flags that say what traffic there is, for real servers and for simulated ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from paceline.cli.choices import OneOf
from paceline.cli.flag_sets import flag
from paceline.cli.numbers import Span
from paceline.errors import ConfigError
from paceline.workload import arrivals as processes
from paceline.workload.requests import Workload, WorkloadError, check
from paceline.workload.reshape import deal_tenants, leave_out_long, scale_lengths
from paceline.workload.synthetic import SHORT_MEDIUM_LONG, Kind, Lengths, Synthetic, with_arrivals
from paceline.workload.trace_rows import MOST_TOKENS as MOST_CONVERSATION  # of its last prompt
from paceline.workload.traces import FORMATS, ReadOptions, read

RANDOM = "random"  # vLLM's name for requests that are made up
ARRIVALS = ("auto", "poisson", "gamma", "constant", "ramp", "trace")
MOST_REQUESTS = 10**7
MOST_TOKENS = 2**20  # of a prompt that is made up, or of an answer
MOST_TENANTS = 10_000
RATES = Span(10**-6, 10**9)  # requests per second


@dataclass(frozen=True)
class WorkloadFlags:
    """Traffic, as typed."""

    trace: Annotated[
        str | None, flag("A trace: a file, or the name of one that comes with Paceline.", "--trace", "--dataset-path")
    ] = None
    trace_format: Annotated[
        str,
        flag(
            "auto, csv, azure, burstgpt, mooncake, timed_trace, bailian, servegen or sharegpt; random: no trace.",
            "--trace-format",
            "--dataset-name",
        ),
        OneOf("auto", RANDOM, *FORMATS),
    ] = "auto"
    num_prompts: Annotated[int | None, flag("Requests; default: 64, or the whole trace."), Span(1, MOST_REQUESTS)] = (
        None
    )
    input_len: Annotated[
        int, flag("Prompt tokens of generated requests.", "--input-len", "--random-input-len"), Span(1, MOST_TOKENS)
    ] = 128
    output_len: Annotated[
        int, flag("Tokens to generate for each.", "--output-len", "--random-output-len"), Span(1, MOST_TOKENS)
    ] = 64
    random_range_ratio: Annotated[float, flag("Spread of both lengths: 0.5 means 50 to 150 %."), Span(0, below=1)] = 0.0
    mix: Annotated[
        str | None,
        flag("Several kinds, as WEIGHT:INPUT:OUTPUT,...; or 'real': 40 % short, 40 % medium, 20 % long."),
    ] = None
    prefix_len: Annotated[
        int,
        flag("Prompt tokens, on top, shared with other requests.", "--prefix-len", "--random-prefix-len"),
        Span(0, MOST_TOKENS),
    ] = 0
    prefixes: Annotated[int, flag("How many different shared prefixes."), Span(1, MOST_TOKENS)] = 1
    prefix_share: Annotated[float, flag("Share of the requests with a shared prefix."), Span(0, 1)] = 1.0
    turns: Annotated[int, flag("Turns of each conversation."), Span(1, 10_000)] = 1
    think_time: Annotated[float, flag("Mean seconds between an answer and the next turn."), Span(0, 10**9)] = 0.0
    tenants: Annotated[str | None, flag("Deal the requests to tenants: a number, or NAME:WEIGHT,...")] = None
    arrivals: Annotated[
        str,
        flag("auto, poisson, gamma, constant, ramp or trace; auto: the trace's, else by --burstiness."),
        OneOf(*ARRIVALS),
    ] = "auto"
    request_rate: Annotated[
        str | None,
        flag(
            "Requests per second, or inf; default: 2, or as the trace. Stretches a trace's times.",
            "--request-rate",
            "--rate",
        ),
    ] = None
    burstiness: Annotated[float, flag("1 is Poisson, below 1 burstier, above 1 more even."), Span(0.001, 1000)] = 1.0
    ramp: Annotated[str | None, flag("FROM:TO:SECONDS[:exponential], requests per second.")] = None
    time_scale: Annotated[
        float, flag("Multiplies a trace's times: 0.5 doubles its rate."), Span(above=0, most=10**9)
    ] = 1.0
    spread_ticks: Annotated[bool, flag("Spread arrivals that a trace rounded to ticks.", "--spread-ticks")] = False
    block_size: Annotated[
        int | None, flag("Tokens of a trace's block hash; default: its format's."), Span(1, MOST_TOKENS)
    ] = None
    bad_rows: Annotated[str, flag("refuse or skip rows of a trace that make no sense."), OneOf("refuse", "skip")] = (
        "refuse"
    )
    trace_start: Annotated[float, flag("ServeGen: second to start from."), Span(0, 10**9)] = 0.0
    trace_seconds: Annotated[
        float | None, flag("ServeGen: seconds to draw; default: 600."), Span(above=0, most=10**9)
    ] = None
    max_tokens: Annotated[
        int | None, flag("Leave out requests of more tokens, prompt and answer together."), Span(2)
    ] = None
    scale_lengths: Annotated[float, flag("Multiplies all lengths."), Span(above=0, most=10**6)] = 1.0
    seed: Annotated[int, flag("Of lengths, prompts and arrivals."), Span(0, 2**63 - 1)] = 0


def build(flags: WorkloadFlags, rate: float | None = None, ordered: bool = True) -> tuple[Workload, float]:
    """The workload and its rate in requests/s. `rate` goes before --request-rate. WorkloadError or ConfigError.

    `ordered` False: times do not matter (a closed loop), all are 0.
    """
    if rate is None:
        rate = None if flags.request_rate is None else request_rate(flags.request_rate)
    workload = _from_trace(flags) if flags.trace is not None else _generated(flags)
    workload = _scaled(workload, flags.scale_lengths)
    if flags.max_tokens is not None:
        workload = _short(workload, flags.max_tokens)
    if flags.tenants is not None:
        workload = deal_tenants(workload, _tenants(flags.tenants), flags.seed)
    if not ordered:
        return check(with_arrivals(workload, processes.AllAtOnce())), float("inf")
    return _timed(workload, flags, rate)


def _timed(workload: Workload, flags: WorkloadFlags, rate: float | None) -> tuple[Workload, float]:
    kind = flags.arrivals
    if flags.ramp is not None and kind in ("auto", "ramp"):
        ramp = _ramp(flags.ramp, flags.burstiness)
        return check(with_arrivals(workload, ramp, flags.seed)), ramp.end
    if kind == "ramp":
        raise ConfigError("--ramp", None, "given with --arrivals ramp, as FROM:TO:SECONDS")
    from_trace = flags.trace is not None and workload.timed
    if kind == "trace" and not from_trace:
        raise ConfigError("--arrivals", kind, "another process: there is no trace with times")
    if from_trace and kind in ("auto", "trace") and flags.burstiness != 1:
        allowed = f"left out: the requests come at the times of {flags.trace} (--arrivals gamma draws others)"
        raise ConfigError("--burstiness", flags.burstiness, allowed)
    if flags.trace is not None and not workload.timed and flags.time_scale != 1:
        raise ConfigError("--time-scale", flags.time_scale, f"left out: {flags.trace} has no times")
    if kind == "trace" or (kind == "auto" and from_trace):
        workload = workload.scaled(flags.time_scale)
        if rate is not None and rate != float("inf"):
            workload = workload.at_rate(rate)
        if rate != float("inf"):
            return check(workload), (len(workload) - 1) / max(workload.duration, 1e-9)
    rate = 2.0 if rate is None else rate
    if rate == float("inf"):
        return check(with_arrivals(workload, processes.AllAtOnce())), rate
    process: processes.Arrivals = processes.Gamma(rate, flags.burstiness)
    if kind == "constant":
        process = processes.Constant(rate)
    elif kind == "poisson":
        process = processes.Poisson(rate)
    return check(with_arrivals(workload, process, flags.seed)), rate


def _scaled(workload: Workload, factor: float) -> Workload:
    longest = max(max(request.prompt_len, request.output_len) for request in workload.requests)
    if longest * factor > MOST_CONVERSATION:
        most = MOST_CONVERSATION / longest
        raise ConfigError("--scale-lengths", factor, f"at most {most:.4g}: the longest would have too many tokens")
    return scale_lengths(workload, factor)


def _short(workload: Workload, limit: int) -> Workload:
    least = min(request.prompt_len + request.output_len for request in workload.requests)
    if least > limit:
        raise ConfigError("--max-tokens", limit, f"at least {least}, the tokens of the shortest request")
    return leave_out_long(workload, limit)


def _from_trace(flags: WorkloadFlags) -> Workload:
    options = ReadOptions(
        format=flags.trace_format,
        block_size=flags.block_size,
        skip_bad_rows=flags.bad_rows == "skip",
        spread_ticks=flags.spread_ticks,
        seed=flags.seed,
        start=flags.trace_start,
        duration=flags.trace_seconds,
    )
    try:
        workload = read(str(flags.trace), options)
    except WorkloadError as error:
        raise WorkloadError(f"--trace: {error}") from None
    if flags.max_tokens is not None and flags.scale_lengths == 1:
        workload = _short(workload, flags.max_tokens)
    if flags.num_prompts is not None and flags.num_prompts > len(workload):
        raise ConfigError("--num-prompts", flags.num_prompts, f"at most {len(workload)}, the requests of {flags.trace}")
    return workload.head(flags.num_prompts)


def _generated(flags: WorkloadFlags) -> Workload:
    spread = flags.random_range_ratio
    for name, mean in (("--input-len", flags.input_len), ("--output-len", flags.output_len)):
        if not 1 <= mean <= MOST_TOKENS / (1 + spread):
            most = int(MOST_TOKENS / (1 + spread))
            raise ConfigError(name, mean, f"from 1 to {most:,}" + (f" with a spread of {spread:g}" if spread else ""))
    shared = {
        "prefix": flags.prefix_len,
        "prefixes": flags.prefixes,
        "prefix_share": flags.prefix_share,
        "turns": flags.turns,
        "think": flags.think_time,
    }
    if flags.mix == "real":
        kinds = tuple(Kind(one.input, one.output, one.weight, **shared) for one in SHORT_MEDIUM_LONG)  # type: ignore[arg-type]
    else:
        weighted = _mix(flags.mix) if flags.mix is not None else [(1.0, flags.input_len, flags.output_len)]
        kinds = tuple(
            Kind(Lengths(given, spread), Lengths(asked, spread), weight, **shared)  # type: ignore[arg-type]
            for weight, given, asked in weighted
        )
    longest = flags.prefix_len + flags.turns * max(kind.input.mean + kind.output.mean for kind in kinds) * (1 + spread)
    if longest > MOST_CONVERSATION:
        allowed = f"fewer: the last prompt would have some {longest:,.0f} tokens, and {MOST_CONVERSATION:,} is the most"
        raise ConfigError("--turns", flags.turns, allowed)
    return Synthetic(kinds).workload(64 if flags.num_prompts is None else flags.num_prompts, flags.seed)


def request_rate(text: str) -> float:
    """Of --request-rate. ConfigError for what is none."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if rate != float("inf") and not RATES.holds(rate):
        raise ConfigError("--request-rate", text, "a number above 0, or inf: from 1e-6 to 1e9 requests per second")
    return rate


def _ramp(text: str, burstiness: float) -> processes.Ramp:
    try:
        start, end, duration, *shape = text.split(":")
        return processes.Ramp(
            _finite(start), _finite(end), _finite(duration), shape[0] if len(shape) == 1 else "linear", burstiness
        )
    except (ValueError, TypeError):
        raise ConfigError("--ramp", text, "FROM:TO:SECONDS, such as 1:10:60") from None
    except WorkloadError as error:
        raise ConfigError("--ramp", text, f"FROM:TO:SECONDS, such as 1:10:60 ({error})") from None


def _mix(text: str) -> list[tuple[float, int, int]]:
    try:
        found = [(_finite(w), int(i), int(o)) for w, i, o in (one.split(":") for one in text.split(","))]
    except ValueError:
        found = []
    most = MOST_TOKENS // 2
    if not found or not all(weight > 0 and 1 <= given <= most and 1 <= asked <= most for weight, given, asked in found):
        example = "0.7:128:64,0.3:2000:200"
        allowed = f"real, or WEIGHT:INPUT:OUTPUT,... as {example}: weights above 0, tokens from 1 to {most:,}"
        raise ConfigError("--mix", text, allowed)
    return found


def _tenants(text: str) -> dict[str, float]:
    try:
        if text.isdigit():
            found = {f"tenant-{number}": 1.0 for number in range(min(int(text), MOST_TENANTS + 1))}
        else:
            found = {name: _finite(weight) for name, weight in (one.rsplit(":", 1) for one in text.split(","))}
    except ValueError:
        found = {}
    if not 1 <= len(found) <= MOST_TENANTS or min(found.values()) <= 0 or not all(found):
        allowed = f"a number from 1 to {MOST_TENANTS:,}, or NAME:WEIGHT,... with weights above 0"
        raise ConfigError("--tenants", text, allowed)
    return found


def _finite(text: str) -> float:
    """ValueError for what is no finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
