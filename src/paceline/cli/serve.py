"""`paceline serve`: flags, progress while loading, and what to do next once it is ready."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.sizes import parse_size
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
    attention: Annotated[str, _flag("auto, reference or varlen.")] = "auto",
    backend: Annotated[str, _flag("auto, native or transformers.")] = "auto",
    threads: Annotated[int | None, _flag("Compute threads; default: one per core.")] = None,
    seed: Annotated[int | None, _flag("Makes the seeds of requests without one repeatable.")] = None,
    max_model_len: Annotated[int | None, _flag("Most tokens of a sequence; default: the model's context.")] = None,
    block_size: Annotated[int, _flag("Tokens of a KV block.")] = 16,
    kv_cache_memory: Annotated[
        int | None, _flag("Memory for KV, such as 512MiB or 2G.", parser=parse_size, metavar="SIZE")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, _flag("Share of the device's memory to use when --kv-cache-memory is not given.")
    ] = None,
    num_blocks: Annotated[int | None, _flag("KV blocks; goes before both.")] = None,
    enable_prefix_caching: Annotated[
        bool, _flag("Reuse the KV of prompts seen before.", "--enable-prefix-caching/--no-enable-prefix-caching")
    ] = True,
    discipline: Annotated[str, _flag("How requests are scheduled.")] = "paceline",
    order: Annotated[str | None, _flag("Who is next: fcfs, priority; default: the discipline's.")] = None,
    max_num_seqs: Annotated[int, _flag("Most sequences in the batch.")] = 128,
    max_num_batched_tokens: Annotated[int, _flag("Most tokens a step may process.")] = 2048,
    enable_chunked_prefill: Annotated[
        bool, _flag("Split long prompts over steps.", "--enable-chunked-prefill/--no-enable-chunked-prefill")
    ] = True,
    long_prefill_token_threshold: Annotated[int, _flag("Most tokens of one prompt in a step; 0: no limit.")] = 0,
    watermark: Annotated[float, _flag("Share of the KV blocks kept free when a sequence is admitted.")] = 0.0,
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
    host: Annotated[str, _flag("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _flag("Port to listen on; 0: any free one, printed at start.")] = 8000,
    api_key: Annotated[list[str] | None, _flag("Key that clients must send; may be given several times.")] = None,
    share_cache: Annotated[
        bool, _flag("Share cached KV between the holders of different --api-keys.", "--share-cache/--no-share-cache")
    ] = False,
    max_body_size: Annotated[
        int, _flag("Largest body of a request.", parser=parse_size, metavar="SIZE", show_default="16MiB")
    ] = 2**24,
    shutdown_grace: Annotated[float, _flag("Seconds running requests get when the server is stopped.")] = 30.0,
    access_log: Annotated[bool, _flag("Log every request.", "--access-log/--no-access-log")] = False,
    log_level: Annotated[str, _flag("debug, info, warning or error.")] = "info",
) -> int:
    """Serve a model over the OpenAI API."""
    from paceline.engine.config import EngineConfig
    from paceline.server.config import ServerConfig

    given = {**context.params, "model": _one_model(model_argument, model), "api_keys": tuple(api_key or ())}
    return _run(_pick(EngineConfig, given), _pick(ServerConfig, given), log_level)


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
