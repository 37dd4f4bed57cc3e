"""`paceline profile`: measured step times of a model on this machine, for the simulator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.numbers import Span
from paceline.cli.outputs import check_file
from paceline.cli.sizes import parse_memory
from paceline.errors import PacelineError

if TYPE_CHECKING:
    from paceline.bench.bystanders import Patience
    from paceline.bench.profile import FittedTimer, StepTimer
    from paceline.sim.profile import Serving

TRIES = 20  # times that something is measured again because of others
SERVER_BLOCKS_A_ROW = 4  # of the server that is measured: what a request of a wave needs, and some to spare


def profile(
    model: Annotated[str, typer.Argument(help="smollm2-135m, a directory, a .gguf file or a hub id.")] = "smollm2-135m",
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the profile.")] = Path("profile.json"),
    seconds: Annotated[float, typer.Option(help="About how long to measure steps."), Span(above=0, most=10**6)] = 45.0,
    serving: Annotated[
        bool, typer.Option("--serving/--no-serving", help="Measure what a server on this machine adds, too.")
    ] = True,
    rounds: Annotated[int, typer.Option(help="Rounds through the server."), Span(1, 10**4)] = 4,
    patience: Annotated[
        float,
        typer.Option(help="Seconds to wait for others on the machine; what they disturb is measured again."),
        Span(0, 10**6),
    ] = 120.0,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Compute threads; default: one per core.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of a sequence.")] = None,
    kv_cache_memory: Annotated[
        int | None, typer.Option(help="Memory for KV, such as 512MiB.", parser=parse_memory, metavar="SIZE")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences in the batch.")] = 128,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens of a step.")] = 2048,
) -> int:
    """Measure the model's step times on this machine, and fit a profile for `paceline simulate --profile`."""
    from paceline.bench import terminal
    from paceline.bench.bystanders import Bystanders, Patience
    from paceline.bench.profile import VARIES, FittedTimer, StepTimer, measure
    from paceline.bench.profile import profile as fitted
    from paceline.engine.config import EngineConfig
    from paceline.engine.loop_cost import loop_cost
    from paceline.engine.setup import build

    check_file("--output", output)
    console = terminal.console(soft_wrap=True)
    given = {
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "max_model_len": max_model_len,
        "kv_cache_memory": kv_cache_memory,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }
    given = {name: value for name, value in given.items() if value is not None}

    def progress(text: str) -> None:
        console.print(text, style="dim", markup=False)

    built = build(EngineConfig(model=model, **given), progress)  # type: ignore[arg-type]
    info, executor = built.info, built.executor
    del built
    bystanders, began = Bystanders(), time.monotonic()
    waiting = Patience(TRIES, patience, progress)
    measured = measure(executor, max_num_seqs, max_num_batched_tokens, seconds, progress, waiting)
    loop = loop_cost(max_num_seqs)
    served = None
    if serving:
        timer: StepTimer | FittedTimer = StepTimer(executor, max_num_seqs, max_num_batched_tokens)
        if executor.device.type != "cpu":  # the server needs its memory
            timer = FittedTimer(measured)
            del executor
            _let_go()
        served = _served(model, given, info, timer, loop, rounds, progress, waiting)
    quiet = f"{bystanders.seen()}; {waiting.repeated} parts measured again"
    facts = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens, "quiet": quiet}
    found = fitted(measured, info, loop, served, facts)
    found.write(output)
    console.print(
        f"{found.shapes} step shapes, {time.monotonic() - began:.0f} s; error {found.error:.1%}, "
        f"{found.left_out_error:.1%} on shapes left out (worst {found.left_out_worst:.1%}); "
        f"room for {found.kv_tokens:,} KV tokens",
        markup=False,
    )
    if waiting.kept:
        console.print(f"the machine was not quiet ({quiet}): these times may be too long", style="yellow")
    if measured.spread > VARIES:
        console.print(
            f"the machine's own speed varied by {measured.spread:.0%} meanwhile: a run may be as far off its average",
            style="yellow",
        )
    console.print(f"the loop adds {loop[0] * 1e6:.0f} us a step and {loop[1] * 1e6:.1f} us a row", markup=False)
    if served is not None:
        _print_serving(console, served)
    console.print(f"profile: {output}; try: paceline simulate --profile {output} --input-len 128", markup=False)
    return 0


def _let_go() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _served(
    model: str,
    given: dict[str, Any],
    info: dict[str, Any],
    timer: StepTimer | FittedTimer,
    loop: tuple[float, float],
    rounds: int,
    progress: Any,
    patience: Patience,
) -> Serving:
    """Start `paceline serve` with the same settings, and little KV, and measure through it."""
    try:
        import aiohttp  # noqa: F401
        import fastapi  # noqa: F401
    except ModuleNotFoundError as missing:
        text = f"{missing.name} is needed to measure through a server; pip install 'paceline[server,bench]', or give "
        raise PacelineError(text + "--no-serving") from None
    from paceline.bench.measure import run_blocking
    from paceline.bench.server_process import ServerProcess, typed
    from paceline.bench.serving_cost import serving_cost

    rows = given["max_num_seqs"]
    settings = {name: value for name, value in given.items() if name != "kv_cache_memory"}
    settings["num_blocks"] = min(info["num_blocks"], max(SERVER_BLOCKS_A_ROW * rows, 256))
    tokens = settings["num_blocks"] * info["block_size"]
    settings["max_model_len"] = min(info["max_model_len"], tokens)
    with ServerProcess(model, *typed(settings)) as server:
        found: Serving = run_blocking(
            serving_cost(server.url, timer.seconds, loop, rows, rounds, progress, kv_tokens=tokens, patience=patience)
        )
    return found


def _print_serving(console: Any, served: Serving) -> None:
    console.print(
        f"behind a server on this machine: {served.per_step * 1e3:.2f} ms more a step and {served.per_row * 1e3:.3f} "
        f"ms a row, error {served.error:.1%}; {served.per_request * 1e3:.2f} ms a request; "
        f"{(served.entry_seconds + served.exit_seconds) * 1e3:.1f} ms more to the first token",
        markup=False,
    )
    for size, alone, through in served.waves:
        console.print(f"  {size:3d} at a time: {alone * 1e3:7.2f} ms a step, {through * 1e3:7.2f} served", style="dim")
