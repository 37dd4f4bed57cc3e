"""`paceline profile`: measured step times of a model on this machine, for the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.sizes import parse_size


def profile(
    model: Annotated[str, typer.Argument(help="smollm2-135m, a directory, a .gguf file or a hub id.")] = "smollm2-135m",
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the profile.")] = Path("profile.json"),
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 60.0,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Compute threads; default: one per core.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of a sequence.")] = None,
    kv_cache_memory: Annotated[
        int | None, typer.Option(help="Memory for KV, such as 512MiB.", parser=parse_size, metavar="SIZE")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences in the batch.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens of a step.")] = 2048,
) -> int:
    """Measure the model's step times on this machine, and fit a profile for `paceline simulate --profile`."""
    from rich.console import Console

    from paceline.bench.profile import profile as measured
    from paceline.engine.config import EngineConfig
    from paceline.engine.setup import build

    console = Console(highlight=False)
    given = {
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "max_model_len": max_model_len,
        "kv_cache_memory": kv_cache_memory,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }
    config = EngineConfig(model=model, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def progress(text: str) -> None:
        console.print(text, style="dim", markup=False)

    built = build(config, progress)
    executor, info = built.executor, built.info
    found = measured(executor, info, max_num_seqs, max_num_batched_tokens, seconds, progress)
    found.write(output)
    console.print(
        f"{found.shapes} step shapes; error {found.error:.1%}, {found.left_out_error:.1%} on shapes left out "
        f"(worst {found.left_out_worst:.1%}); room for {found.kv_tokens:,} KV tokens",
        markup=False,
    )
    console.print(f"profile: {output}; try: paceline simulate --profile {output} --input-len 128", markup=False)
    return 0
