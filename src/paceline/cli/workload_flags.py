"""The flags that say what traffic there is, for real servers and for simulated ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.cli.flag_sets import flag
from paceline.errors import ConfigError
from paceline.workload import arrivals as processes
from paceline.workload.requests import Workload, check
from paceline.workload.reshape import deal_tenants, leave_out_long, scale_lengths
from paceline.workload.synthetic import SHORT_MEDIUM_LONG, Kind, Lengths, Synthetic, with_arrivals
from paceline.workload.traces import ReadOptions, read

ARRIVALS = ("auto", "poisson", "gamma", "constant", "ramp", "trace")


@dataclass(frozen=True)
class WorkloadFlags:
    """Traffic, as typed."""

    trace: Annotated[
        str | None, flag("A trace: a file, or the name of one that comes with Paceline.", "--trace", "--dataset-path")
    ] = None
    trace_format: Annotated[
        str,
        flag("auto, csv, azure, burstgpt, mooncake, timed_trace, bailian, servegen or sharegpt.", "--trace-format"),
    ] = "auto"
    num_prompts: Annotated[int | None, flag("Requests; default: 64, or the whole trace.")] = None
    input_len: Annotated[int, flag("Prompt tokens of generated requests.")] = 128
    output_len: Annotated[int, flag("Tokens to generate for each.")] = 64
    random_range_ratio: Annotated[float, flag("Spread of both lengths: 0.5 means 50 to 150 %.")] = 0.0
    mix: Annotated[
        str | None,
        flag("Several kinds, as WEIGHT:INPUT:OUTPUT,...; or 'real': 40 % short, 40 % medium, 20 % long."),
    ] = None
    prefix_len: Annotated[
        int, flag("Prompt tokens, on top, shared with other requests.", "--prefix-len", "--random-prefix-len")
    ] = 0
    prefixes: Annotated[int, flag("How many different shared prefixes.")] = 1
    prefix_share: Annotated[float, flag("Share of the requests with a shared prefix.")] = 1.0
    turns: Annotated[int, flag("Turns of each conversation.")] = 1
    think_time: Annotated[float, flag("Mean seconds between an answer and the next turn.")] = 0.0
    tenants: Annotated[str | None, flag("Deal the requests to tenants: a number, or NAME:WEIGHT,...")] = None
    arrivals: Annotated[
        str, flag("auto, poisson, gamma, constant, ramp or trace; auto: the trace's, else by --burstiness.")
    ] = "auto"
    request_rate: Annotated[
        str | None, flag("Requests per second, or inf; default: 2, or as the trace. Stretches a trace's times.")
    ] = None
    burstiness: Annotated[float, flag("1 is Poisson, below 1 burstier, above 1 more even.")] = 1.0
    ramp: Annotated[str | None, flag("FROM:TO:SECONDS[:exponential], requests per second.")] = None
    time_scale: Annotated[float, flag("Multiplies a trace's times: 0.5 doubles its rate.")] = 1.0
    spread_ticks: Annotated[bool, flag("Spread arrivals that a trace rounded to ticks.", "--spread-ticks")] = False
    block_size: Annotated[int | None, flag("Tokens of a trace's block hash; default: its format's.")] = None
    bad_rows: Annotated[str, flag("refuse or skip rows of a trace that make no sense.")] = "refuse"
    trace_start: Annotated[float, flag("ServeGen: second to start from.")] = 0.0
    trace_seconds: Annotated[float | None, flag("ServeGen: seconds to draw; default: 600.")] = None
    max_tokens: Annotated[int | None, flag("Leave out requests of more tokens, prompt and answer together.")] = None
    scale_lengths: Annotated[float, flag("Multiplies all lengths.")] = 1.0
    seed: Annotated[int, flag("Of lengths, prompts and arrivals.")] = 0


def build(flags: WorkloadFlags, rate: float | None = None, ordered: bool = True) -> tuple[Workload, float]:
    """The workload and its rate in requests/s. `rate` goes before --request-rate. WorkloadError or ConfigError.

    `ordered` False: times do not matter (a closed loop), all are 0.
    """
    if rate is None:
        rate = None if flags.request_rate is None else _rate(flags.request_rate)
    workload = _from_trace(flags) if flags.trace is not None else _generated(flags)
    workload = scale_lengths(workload, flags.scale_lengths)
    if flags.max_tokens is not None:
        workload = leave_out_long(workload, flags.max_tokens)
    if flags.tenants is not None:
        workload = deal_tenants(workload, _tenants(flags.tenants), flags.seed)
    if not ordered:
        return check(with_arrivals(workload, processes.AllAtOnce())), float("inf")
    return _timed(workload, flags, rate)


def _timed(workload: Workload, flags: WorkloadFlags, rate: float | None) -> tuple[Workload, float]:
    kind = flags.arrivals
    if kind not in ARRIVALS:
        raise ConfigError("--arrivals", kind, "one of " + ", ".join(ARRIVALS))
    if flags.ramp is not None and kind in ("auto", "ramp"):
        ramp = _ramp(flags.ramp, flags.burstiness)
        return check(with_arrivals(workload, ramp, flags.seed)), ramp.end
    if kind == "ramp":
        raise ConfigError("--ramp", None, "given with --arrivals ramp, as FROM:TO:SECONDS")
    from_trace = flags.trace is not None and workload.timed
    if kind == "trace" and not from_trace:
        raise ConfigError("--arrivals", kind, "another process: there is no trace with times")
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


def _from_trace(flags: WorkloadFlags) -> Workload:
    if flags.bad_rows not in ("refuse", "skip"):
        raise ConfigError("--bad-rows", flags.bad_rows, "refuse or skip")
    options = ReadOptions(
        format=flags.trace_format,
        block_size=flags.block_size,
        skip_bad_rows=flags.bad_rows == "skip",
        spread_ticks=flags.spread_ticks,
        seed=flags.seed,
        start=flags.trace_start,
        duration=flags.trace_seconds,
    )
    workload = read(str(flags.trace), options)
    if flags.max_tokens is not None and flags.scale_lengths == 1:
        workload = leave_out_long(workload, flags.max_tokens)
    if flags.num_prompts is not None and flags.num_prompts > len(workload):
        raise ConfigError("--num-prompts", flags.num_prompts, f"at most {len(workload)}, the requests of {flags.trace}")
    return workload.head(flags.num_prompts)


def _generated(flags: WorkloadFlags) -> Workload:
    if flags.num_prompts is not None and flags.num_prompts < 1:
        raise ConfigError("--num-prompts", flags.num_prompts, "at least 1")
    spread = flags.random_range_ratio
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
        weighted = _mix(flags.mix) if flags.mix else [(1.0, flags.input_len, flags.output_len)]
        kinds = tuple(
            Kind(Lengths(given, spread), Lengths(asked, spread), weight, **shared)  # type: ignore[arg-type]
            for weight, given, asked in weighted
        )
    return Synthetic(kinds).workload(64 if flags.num_prompts is None else flags.num_prompts, flags.seed)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise ConfigError("--request-rate", text, "a number above 0, or inf")
    return rate


def _ramp(text: str, burstiness: float) -> processes.Ramp:
    try:
        start, end, duration, shape = (text + ":linear").split(":")[:4]
        return processes.Ramp(float(start), float(end), float(duration), shape, burstiness)
    except (ValueError, TypeError):
        raise ConfigError("--ramp", text, "FROM:TO:SECONDS, such as 1:10:60") from None


def _mix(text: str) -> list[tuple[float, int, int]]:
    try:
        return [(float(w), int(i), int(o)) for w, i, o in (one.split(":") for one in text.split(","))]
    except ValueError:
        raise ConfigError("--mix", text, "WEIGHT:INPUT:OUTPUT,..., such as 0.7:128:64,0.3:2000:200, or real") from None


def _tenants(text: str) -> dict[str, float]:
    try:
        if text.isdigit():
            return {f"tenant-{number}": 1.0 for number in range(int(text))}
        return {name: float(weight) for name, weight in (one.rsplit(":", 1) for one in text.split(","))}
    except ValueError:
        raise ConfigError("--tenants", text, "a number, or NAME:WEIGHT,...") from None
