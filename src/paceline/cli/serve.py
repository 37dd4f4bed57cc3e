"""`paceline serve`: flags, progress while loading, and what to do next once it is ready."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.idle_flags import was_typed
from paceline.cli.settings_file import parse_knobs, read_settings
from paceline.cli.sizes import parse_memory, parse_size, parse_space
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.engine.config import EngineConfig
    from paceline.server.config import ServerConfig

_MODEL = "smollm2-135m, a directory, a .gguf file or a hub id."


def _flag(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, **more)


def serve(
    context: typer.Context,
    model_argument: Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)] = None,
    model: Annotated[str | None, _flag("The same as MODEL.")] = None,
    served_model_name: Annotated[str | None, _flag("The name clients use; default: MODEL as given.")] = None,
    tokenizer: Annotated[str | None, _flag("Another tokenizer: a directory or hub id.")] = None,
    chat_template: Annotated[str | None, _flag("Another chat template: Jinja, or a file with it.")] = None,
    dtype: Annotated[str, _flag("auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, _flag("auto, cpu or cuda.")] = "auto",
    quantization: Annotated[
        str, _flag("Weights on the CPU: auto, keep (quantised as in the file), none (in --dtype), int8 or int4.")
    ] = "auto",
    attention: Annotated[str, _flag("auto, cpu, reference or varlen.")] = "auto",
    kernels: Annotated[str, _flag("auto, off, or an instruction set: avx512_bf16, avx512, avx2, generic.")] = "auto",
    backend: Annotated[str, _flag("auto, native or transformers.")] = "auto",
    threads: Annotated[int | None, _flag("Compute threads; default: one per core.")] = None,
    seed: Annotated[int | None, _flag("Makes the seeds of requests without one repeatable.")] = None,
    max_model_len: Annotated[int | None, _flag("Most tokens of a sequence; default: the model's context.")] = None,
    block_size: Annotated[int | None, _flag("Tokens of a KV block; default: the discipline's, mostly 16.")] = None,
    kv_cache_dtype: Annotated[str, _flag("KV in auto (as --dtype) or, on the CPU, int8.")] = "auto",
    kv_cache_memory: Annotated[
        int | None, _flag("Memory for KV, such as 512MiB or 2G.", parser=parse_memory, metavar="SIZE")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, _flag("Share of the device's memory to use when --kv-cache-memory is not given.")
    ] = None,
    num_blocks: Annotated[int | None, _flag("KV blocks; goes before both.")] = None,
    swap_space: Annotated[
        int | None,
        _flag("Host memory for KV that leaves the device: 4 (GiB) or 512MiB.", parser=parse_space, metavar="SIZE"),
    ] = None,
    num_host_blocks: Annotated[int | None, _flag("The same in blocks; goes before it.")] = None,
    disk_kv: Annotated[
        str | None, _flag("Directory for KV that leaves the host; found again after a restart.", metavar="DIRECTORY")
    ] = None,
    disk_kv_size: Annotated[
        int | None,
        _flag("Most it may take; default: 16GiB, or half of what is free.", parser=parse_memory, metavar="SIZE"),
    ] = None,
    kv_load: Annotated[
        str | None, _flag("auto (load KV where that beats computing it, as measured), always or never.")
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None,
        _flag("Reuse the KV of prompts seen before.", "--enable-prefix-caching/--no-enable-prefix-caching"),
    ] = None,
    discipline: Annotated[
        str, _flag("How requests are scheduled; 'paceline disciplines' lists all, and what they set below.")
    ] = "paceline",
    order: Annotated[str | None, _flag("Who is next; 'paceline disciplines'; default: the discipline's.")] = None,
    knob: Annotated[
        list[str] | None,
        _flag("A number of the discipline's, as 'paceline disciplines NAME' shows; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    optimize: Annotated[
        str | None, _flag("ttft, tpot, tail, throughput or fairness: set for it what is not given, and say why.")
    ] = None,
    max_num_seqs: Annotated[int | None, _flag("Most sequences in the batch.")] = None,
    max_num_batched_tokens: Annotated[int | None, _flag("Most tokens a step may process.")] = None,
    enable_chunked_prefill: Annotated[
        bool | None, _flag("Split long prompts over steps.", "--enable-chunked-prefill/--no-enable-chunked-prefill")
    ] = None,
    long_prefill_token_threshold: Annotated[
        int | None, _flag("Most tokens of one prompt in a step; 0: no limit.")
    ] = None,
    watermark: Annotated[
        float | None,
        _flag(
            "Headroom: the share of the KV blocks kept free when a sequence is admitted; 0.1 to 0.2 against swapping."
        ),
    ] = None,
    kv_headroom: Annotated[
        float | None,
        _flag("The same as --watermark, 0 to 0.5: 0.1 to 0.2 is usual; more preempts less and batches less."),
    ] = None,
    preemption: Annotated[
        str | None, _flag("What becomes of a victim's KV: recompute, swap, hold, auto or threshold:128 (tokens).")
    ] = None,
    victim: Annotated[
        str | None,
        _flag("newest, latest-arrival, lowest-priority, least-lost, shortest-output or most-kv."),
    ] = None,
    max_preemptions: Annotated[
        int | None, _flag("Times a request may be preempted before it is protected; 0: any number.")
    ] = None,
    max_queued_requests: Annotated[int | None, _flag("Most requests that may wait; more get 429.")] = None,
    max_queued_tokens: Annotated[int | None, _flag("Most prompt tokens that may wait.")] = None,
    max_queue_wait: Annotated[float | None, _flag("Longest predicted wait in seconds.")] = None,
    max_queued_requests_per_tenant: Annotated[int | None, _flag("The same for each tenant.")] = None,
    max_queued_tokens_per_tenant: Annotated[int | None, _flag("The same for each tenant.")] = None,
    max_queue_wait_per_tenant: Annotated[float | None, _flag("The same for each tenant.")] = None,
    queue_timeout: Annotated[float | None, _flag("Seconds a request may wait that does not say; then 408.")] = None,
    request_timeout: Annotated[float | None, _flag("Seconds a request may take that does not say; then 504.")] = None,
    quotas: Annotated[
        str | None, _flag("TOML file of tenants, their keys and quotas; read again on SIGHUP.", metavar="FILE")
    ] = None,
    request_log_size: Annotated[int, _flag("Ended requests that GET /v1/requests still knows.")] = 1000,
    watchdog_timeout: Annotated[
        float, _flag("Seconds without an answer after which the engine process is replaced; 0: never.")
    ] = 300.0,
    config: Annotated[
        str | None,
        _flag("YAML or TOML file of these settings, and a table 'knobs'; flags go before it.", metavar="FILE"),
    ] = None,
    host: Annotated[str, _flag("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _flag("Port to listen on; 0: any free one, printed at start.")] = 8000,
    api_key: Annotated[list[str] | None, _flag("Key that clients must send; may be given several times.")] = None,
    share_cache: Annotated[
        bool, _flag("Share cached KV between the holders of different --api-keys.", "--share-cache/--no-share-cache")
    ] = False,
    max_body_size: Annotated[
        int,
        _flag("Largest body of a request; default: 16MiB.", parser=parse_size, metavar="SIZE", show_default=False),
    ] = 2**24,
    shutdown_grace: Annotated[float, _flag("Seconds running requests get when the server is stopped.")] = 30.0,
    access_log: Annotated[bool, _flag("Log every request.", "--access-log/--no-access-log")] = False,
    log_level: Annotated[str, _flag("debug, info, warning or error.")] = "info",
) -> int:
    """Serve a model over the OpenAI API."""
    from paceline.engine.config import EngineConfig
    from paceline.server.config import ServerConfig

    given: dict[str, Any] = {name: value for name, value in context.params.items() if was_typed(context, name)}
    given["model"] = _one_model(model_argument, model)
    if api_key:
        given["api_keys"] = tuple(api_key)
    if config is not None:
        settings = read_settings(config, (EngineConfig, ServerConfig), {"log_level": str})
        knobs = {**settings.pop("knobs", {}), **parse_knobs(knob or ())}
        given = {**settings, **{name: value for name, value in given.items() if value is not None}}
    else:
        knobs = parse_knobs(knob or ())
    given["knobs"] = knobs
    return _run(_pick(EngineConfig, given), _pick(ServerConfig, given), given.get("log_level", log_level))


def _one_model(argument: str | None, option: str | None) -> str | None:
    if argument is not None and option is not None and argument != option:
        raise ConfigError("--model", option, f"left out, or the same as MODEL ({argument!r})")
    return argument if option is None else option


def _pick(kind: type[Any], given: dict[str, Any]) -> Any:
    """A configuration from those flags it has; None leaves a setting at its default."""
    names = {spec.name for spec in fields(kind)}
    return kind(**{name: value for name, value in given.items() if name in names and value is not None})


def _run(engine: EngineConfig, server: ServerConfig, log_level: str) -> int:
    import signal

    from paceline.cli.console import LoadingDisplay, print_ready, set_up_logging

    set_up_logging(log_level, server.access_log)
    with LoadingDisplay() as display:
        display("starting")
        for line in engine.tuning.lines:
            display(f"optimize {engine.optimize}: {line}")
        from paceline.server.run import Interrupted
        from paceline.server.run import serve as run_server

        def ready(engine: Any, config: ServerConfig) -> None:
            display.stop()
            print_ready(engine, config)

        try:
            _loop_runner()(run_server(engine, server, display, ready))
        except Interrupted as stop:
            return 128 + int(signal.Signals(stop.number))
    return 0


def _loop_runner() -> Any:
    try:
        import uvloop
    except ModuleNotFoundError:  # not made for Windows
        import asyncio

        return asyncio.run
    return uvloop.run
