"""Flags of `paceline bench offline`: its own, and those of `paceline serve` that set an engine up."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from paceline.cli.choices import OneOf
from paceline.cli.flag_sets import flag
from paceline.cli.numbers import Span
from paceline.cli.serve import serve
from paceline.cli.settings_file import parse_knobs, read_settings
from paceline.engine.config import EngineConfig

AGAINST_STATIC = "continuous-vs-static"
NAMES = ("w1", "shared-prefix", "decode", "prefill", AGAINST_STATIC)

# Of a server's clients, not of an engine that gets its requests here; and the model, which is described anew.
_NOT_HERE = ("model", "served_model_name", "chat_template", "quotas", "request_log_size", "shutdown_grace")


@dataclass(frozen=True)
class OfflineFlags:
    """What to run, on which model."""

    model: Annotated[str, flag("smollm2-135m, a directory, a .gguf file or a hub id.")] = "smollm2-135m"
    workload: Annotated[str, flag(", ".join(NAMES) + "."), OneOf(*NAMES)] = "w1"
    requests: Annotated[int | None, flag("Requests; default: the workload's own number, 64 or 8."), Span(1, 10**6)] = (
        None
    )
    streams: Annotated[int | None, flag("Sequences that decode at once, for decode; default: 32."), Span(1, 10**5)] = (
        None
    )
    context: Annotated[
        int | None,
        flag("Prompt tokens of decode (512) and prefill (2,048); shared ones of shared-prefix (1,000)."),
        Span(1, 2**20),
    ] = None
    output_len: Annotated[
        int | None, flag("Tokens out of decode (129), shared-prefix (32) and prefill (1)."), Span(1, 2**20)
    ] = None
    scale: Annotated[float, flag("Multiplies all lengths: 0.1 for a short run."), Span(above=0, most=1)] = 1.0
    workload_seed: Annotated[int, flag("Of lengths, tokens and arrivals."), Span(0, 2**63 - 1)] = 0
    rounds: Annotated[int, flag("Runs of each side, in turns; each round has tokens of its own."), Span(1, 10**4)] = 1
    json: Annotated[Path | None, flag("Write versions, hardware, settings and figures there.", metavar="FILE")] = None


def _engine_flags() -> type[Any]:
    ours = {spec.name for spec in fields(EngineConfig)} - set(_NOT_HERE) | {"knob", "config"}
    hints = get_type_hints(serve, include_extras=True)
    found = [
        (name, hints[name], field(default=one.default))
        for name, one in inspect.signature(serve).parameters.items()
        if name in ours
    ]
    return make_dataclass("EngineFlags", found, frozen=True, namespace={"__module__": __name__})


EngineFlags = _engine_flags()


def engine_config(model: str, flags: Any) -> EngineConfig:
    """The configuration that the flags, and the file of --config below them, come to. ConfigError."""
    from paceline.server.config import ServerConfig

    usual = EngineFlags()
    given = {
        spec.name: value
        for spec in fields(flags)
        if (value := getattr(flags, spec.name)) is not None and value != getattr(usual, spec.name)
    }
    knobs = parse_knobs(given.pop("knob", None) or ())
    if (path := given.pop("config", None)) is not None:
        settings = read_settings(path, (EngineConfig, ServerConfig), {"log_level": str})
        knobs = {**settings.pop("knobs", {}), **knobs}
        wanted = {spec.name for spec in fields(EngineConfig)} - {"model"}
        given = {**{name: value for name, value in settings.items() if name in wanted}, **given}
    return EngineConfig(model=model, **given, knobs=knobs)
