"""`paceline fit`: what a run on one's own server says of its step times. No model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.choices import OneOf
from paceline.cli.numbers import Span
from paceline.cli.outputs import check_file
from paceline.cli.replica_flags import WEIGHT_BYTES, DeploymentFlags
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.sim.fit_run import RunFit


def fit(
    result: Annotated[
        Path, typer.Argument(help="A run saved with --save-detailed, by `paceline bench serve` or by vLLM's.")
    ],
    gpu: Annotated[str, typer.Option(help="The device it ran on, by name.")],
    model: Annotated[str, typer.Option(help="A known name, a config.json, or a directory with one.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the coefficients.")] = Path(
        "coefficients.json"
    ),
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", "--tp", help="Devices."), Span(1, 1024)] = 1,
    weights: Annotated[str, typer.Option(help="bf16, fp16, fp8, int8, int4 or fp4."), OneOf(*WEIGHT_BYTES)] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp8."), OneOf(*WEIGHT_BYTES)] = "bf16",
    kv_tokens: Annotated[int | None, typer.Option(help="KV capacity as the server reports it."), Span(1, 2**28)] = None,
    discipline: Annotated[str, typer.Option(help="How the server schedules.")] = "vllm",
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens of a step."), Span(1, 2**24)] = 8192,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences in the batch."), Span(1, 2**16)] = 256,
    engine: Annotated[str, typer.Option(help="Whose step times are believed beforehand.")] = "vllm",
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap/--no-overlap",
            help="The server's host works beside the device: asynchronous scheduling in vLLM, overlap in SGLang.",
        ),
    ] = True,
) -> int:
    """Fit step times to a measured run, for `paceline simulate --engine` and `paceline plan --engine`."""
    from paceline.bench import terminal
    from paceline.sim.engines import EngineProfile
    from paceline.sim.engines import engine as engine_named
    from paceline.sim.fit_run import fit_run
    from paceline.sim.measured_run import read_result
    from paceline.sim.question import Knobs, name_of

    check_file("--output", output)
    if output.suffix != ".json":
        raise ConfigError("--output", str(output), "a name that ends in .json")
    where = DeploymentFlags(model, gpu, str(tensor_parallel), weights, kv_dtype)
    deployment = where.deployments()[0].with_coefficients(engine_named(engine).coefficients)
    run = read_result(result)
    knobs = Knobs(discipline, None, max_num_batched_tokens, max_num_seqs)
    found = fit_run(run, deployment, knobs, kv_tokens, overlapped=overlap)
    source = f"{found.requests} requests on {name_of(deployment)}, {result.name}, {discipline}, from {engine}"
    EngineProfile(output.stem, found.coefficients, found.error, source).write(output)
    console = terminal.console(soft_wrap=True)
    _print(console, found)
    console.print(f"coefficients: {output}; try: paceline simulate --engine {output} --gpu {gpu}", markup=False)
    return 0


def _print(console: Any, found: RunFit) -> None:
    from paceline.bench.terminal import WholeTable

    console.print(f"{found.requests} requests: TPOT and E2E of each are off by {found.error:.1%} on average")
    table = WholeTable("simulated over measured", "mean", "p99")
    for name, share in found.bias.items():
        table.add_row(name.upper(), f"{share:+.1%}", f"{found.tails[name]:+.1%}")
    console.print(table)
    table = WholeTable("coefficient", "value", "of its prior's spread left")
    for name, left in found.left_open.items():
        table.add_row(name, f"{getattr(found.coefficients, name):.4g}", f"{left:.0%}")
    console.print(table)
