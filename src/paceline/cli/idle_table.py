"""Which flags of which command do nothing beside, or without, which others."""

from __future__ import annotations

from paceline.cli.idle_flags import Idle, Test
from paceline.cli.workload_flags import RANDOM


def _one_of(*values: object) -> Test:
    return lambda value: value in values


def _several(text: str) -> bool:
    return "," in text


def _at_once(text: str | None) -> bool:
    return text is not None and text.strip().lower().lstrip("+") in ("inf", "infinity")


def _off(value: bool) -> bool:
    return not value


_MADE_UP = "input_len output_len random_range_ratio mix prefix_len prefixes prefix_share turns think_time"
_OF_TRACES = "trace_format time_scale spread_ticks block_size bad_rows trace_start trace_seconds"
_TIMES = "arrivals request_rate burstiness ramp time_scale spread_ticks"

TRAFFIC = (
    Idle(_OF_TRACES, ": it says how a trace is read", without="trace", neutral=(RANDOM, 1.0)),
    Idle("trace", ", whose requests are made up", when=("trace_format", _one_of(RANDOM))),
    Idle(
        _MADE_UP,
        ": its requests have lengths and contents of their own (--scale-lengths, --max-tokens and --num-prompts "
        "change them)",
        beside="trace",
    ),
    Idle("input_len output_len", ", which gives each kind lengths of its own", beside="mix"),
    Idle("random_range_ratio", ", whose kinds have spreads of their own", when=("mix", _one_of("real"))),
    Idle("prefixes prefix_share", ": no prompt has a shared prefix", without="prefix_len"),
    Idle("think_time", ": no conversation has a second turn", without="turns"),
    Idle("ramp", ", another process", when=("arrivals", _one_of("poisson", "gamma", "constant", "trace"))),
    Idle(
        "burstiness",
        ": it is of gamma gaps and of ramps",
        when=("arrivals", _one_of("poisson", "constant", "trace")),
        neutral=(1.0,),
    ),
    Idle(
        "burstiness arrivals time_scale spread_ticks",
        ": all requests come at once",
        when=("request_rate", _at_once),
        neutral=(1.0,),
    ),
    Idle(
        "time_scale spread_ticks",
        ", which leaves a trace's times aside",
        when=("arrivals", _one_of("poisson", "gamma", "constant", "ramp")),
    ),
    Idle("time_scale spread_ticks", ", which leaves a trace's times aside", beside="ramp"),
    Idle("time_scale", ", which stretches a trace's times itself", beside="request_rate"),
)
OWN_RATE = (
    Idle("request_rate", ", which has rates of its own", beside="ramp"),
    Idle("request_rate", ", which has rates of its own: --ramp", when=("arrivals", _one_of("ramp"))),
)
OUTPUTS = (
    Idle("result_dir result_filename", ", which names the file", beside="result"),
    Idle("result_dir", ": nothing is written there", without="save_result save_detailed result_filename"),
)
CLOSED_LOOP = (
    Idle(
        _TIMES,
        ": in a closed loop a request goes out when one ends (--max-concurrency limits an open loop)",
        beside="concurrency",
    ),
    Idle("max_concurrency", ", which is a closed loop", beside="concurrency"),
    Idle("max_lateness", ": in a closed loop nothing is due", beside="concurrency"),
)
TOKEN_IDS = (
    Idle("vocab_size first_token", ": prompts are words", beside="text_prompts"),
    Idle("vocab_size first_token", ": prompts are words", when=("endpoint", _one_of("chat"))),
)
_MEASURED = (*TRAFFIC, *OWN_RATE, *OUTPUTS, *CLOSED_LOOP, *TOKEN_IDS)

TIERS = (
    Idle("disk_memory", ": what leaves it goes to the disk", without="host_memory"),
    Idle("disk_bandwidth", ": there is no disk", without="disk_memory"),
)
_KV_GIVEN = Idle("gpu_memory_utilization", ", which says how much KV there is", beside="kv_tokens")
ENGINE = (
    Idle("kv_cache_memory gpu_memory_utilization", ", which says how much KV there is", beside="num_blocks"),
    Idle("gpu_memory_utilization", ", which says how much KV there is", beside="kv_cache_memory"),
    Idle("swap_space", ", which says how much host memory there is", beside="num_host_blocks"),
    Idle("kv_load", ": no KV leaves the device", without="swap_space num_host_blocks disk_kv", unless="config"),
    Idle(
        "long_prefill_token_threshold",
        ": prompts are taken whole",
        when=("enable_chunked_prefill", _one_of(False)),
        neutral=(0,),
    ),
)

IDLE: dict[str, tuple[Idle, ...]] = {
    "bench serve": _MEASURED,
    "bench compare": (
        Idle("base_url", ": a comparison has --base-urls, or --disciplines"),
        Idle("label", ": each system has its own, as LABEL=URL in --base-urls"),
        Idle("base_urls", ", which starts servers of its own", beside="disciplines"),
        Idle("model api_key", ", which starts servers of its own: --serve-model", beside="disciplines"),
        Idle("serve_model serve_args", ": no server is started", without="disciplines"),
        *_MEASURED,
    ),
    "bench sweep": (
        Idle("concurrency", ": a sweep is over rates"),
        Idle("request_rate ramp time_scale", ": a sweep has rates of its own (--rates, --start-rate)"),
        Idle("label", ": each run is called by its rate"),
        Idle("start_rate steps max_rate", ", which are all that is run", beside="rates"),
        *_MEASURED,
    ),
    "bench offline": (
        Idle("streams context output_len", ", which has lengths of its own", when=("workload", _one_of("w1"))),
        Idle(
            "streams context output_len",
            ", whose lengths are those of w1",
            when=("workload", _one_of("continuous-vs-static")),
        ),
        Idle("streams", ", which has --requests", when=("workload", _one_of("shared-prefix", "prefill"))),
        Idle("requests", ", another word for it", beside="streams"),
        Idle("enable_prefix_caching", ", which runs both", when=("workload", _one_of("shared-prefix"))),
        *ENGINE,
    ),
    "simulate": (
        *TRAFFIC,
        *OWN_RATE,
        *OUTPUTS,
        Idle(
            "model gpu tensor_parallel weights kv_dtype engine gpu_memory_utilization",
            ", which is of the model and the device that were measured",
            beside="profile",
        ),
        Idle("price", ": nothing is bought here; 'paceline plan' has it"),
        Idle("router", ": there is one replica", without="replicas"),
        Idle("label", ": each run is called by its discipline", when=("discipline", _several)),
        _KV_GIVEN,
        *TIERS,
    ),
    "plan": (
        *TRAFFIC,
        Idle("gpus", ": otherwise the number of devices is what is asked for", without="tune"),
        Idle(
            "availability replica_availability step_error what_if result html request_rate router price",
            ", which only ranks knobs",
            beside="tune",
        ),
        Idle("replica_availability", ": no failure is planned for", without="availability"),
        _KV_GIVEN,
        *TIERS,
    ),
    "profile": (Idle("rounds", ": there is no server to measure", when=("serving", _off)),),
    "serve": (
        *ENGINE,
        Idle("share_cache", ": without keys everybody shares it", without="api_key", unless="config quotas"),
    ),
    "disciplines": (Idle("order", ": all of them are listed", without="name"),),
}
