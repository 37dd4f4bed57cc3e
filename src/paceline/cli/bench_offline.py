"""`paceline bench offline`: what an engine in this process does with a workload of exact token ids."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.bench import offline_tables as tables
from paceline.bench import terminal
from paceline.bench.offline import WARM_UP_TOKENS, Measured, drive, warm_up
from paceline.bench.offline_workloads import Size, longest, workload
from paceline.cli.bench_offline_flags import AGAINST_STATIC, OfflineFlags, engine_config
from paceline.cli.offline_engine import OfflineEngine
from paceline.cli.outputs import check_file
from paceline.engine.config import EngineConfig
from paceline.errors import ConfigError, PacelineError
from paceline.workload.arrivals import Poisson
from paceline.workload.requests import Workload
from paceline.workload.synthetic import with_arrivals

LOAD = 0.8  # share of the measured capacity at which disciplines are compared


def offline(flags: OfflineFlags, engine: Any) -> int:
    """Run it, print it, save it."""
    console = terminal.console()
    check_file("--json", flags.json)
    size = Size(flags.requests, flags.streams, flags.context, flags.output_len, flags.scale, flags.workload_seed)
    config = engine_config(flags.model, engine)
    if flags.workload == AGAINST_STATIC and config.discipline == "static":
        raise ConfigError(
            "--discipline", "static", f"another with --workload {AGAINST_STATIC}: static is the other side"
        )
    bench = Bench(console, flags, size, config)
    if flags.workload == AGAINST_STATIC:
        found = bench.against_static()
    elif flags.workload == "shared-prefix":
        found = bench.with_and_without_cache()
    else:
        found = bench.alone()
    if flags.json is not None:
        asked = {**asdict(flags), "json": str(flags.json)}
        saved = {"asked": asked, "settings": _changed(config), "machine": tables.machine(), **found}
        _save(flags.json, saved)
        console.print(f"figures: {flags.json}", markup=False)
    return 0


def _save(path: Path, saved: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(saved, indent=1) + "\n")
    except OSError as error:
        raise PacelineError(f"{path} cannot be written: {error}") from None


def _changed(config: EngineConfig) -> dict[str, Any]:
    usual = EngineConfig()
    return {name: value for name, value in asdict(config).items() if value != getattr(usual, name) or name == "model"}


@dataclass
class Bench:
    """The runs of one command."""

    console: Console
    flags: OfflineFlags
    size: Size
    config: EngineConfig

    def alone(self) -> dict[str, Any]:
        """One engine, and its memory."""
        engine = self._start(self.config)
        runs = [self._drive(engine, self._load(turn), turn) for turn in range(self.flags.rounds)]
        tables.print_runs(self.console, runs)
        memory = engine.memory()
        tables.print_memory(self.console, memory)
        engine.close()
        return {
            "engine": engine.info,
            "runs": [tables.values(run) for run in runs],
            "memory": {**asdict(memory), "rest": memory.rest},
        }

    def with_and_without_cache(self) -> dict[str, Any]:
        """The prefix cache on and off, in turns, and how much it brings."""
        sides = {
            "cache on": self._start(replace(self.config, enable_prefix_caching=True)),
            "cache off": self._start(replace(self.config, enable_prefix_caching=False), quiet=True),
        }
        runs = [
            replace(self._drive(engine, self._load(turn), turn), label=label)
            for turn in range(self.flags.rounds)
            for label, engine in sides.items()
        ]
        tables.print_runs(self.console, runs)
        on, off = (_best(runs, label, "request_rate") for label in sides)
        self.console.print(f"the cache makes it {on / off:.1f} x as fast", style="bold")
        return {"runs": [tables.values(run) for run in runs], "ratio": on / off}

    def against_static(self) -> dict[str, Any]:
        """Poisson arrivals at 80 % of what this discipline does at once, under it and under `static`."""
        load = workload("w1", self.size)
        config = self.config
        if config.max_model_len is None:
            # `static` reserves KV for the longest there may be
            config = replace(config, max_model_len=max(longest(load), WARM_UP_TOKENS))
        ours = self._start(config)
        capacity = self._drive(ours, load, seed=1000).figures.request_rate
        rate = LOAD * capacity
        text = f"{config.discipline} does {capacity:.2f} requests/s at once; at {LOAD:.0%}, {rate:.2f}/s, Poisson:"
        self.console.print(text, markup=False, soft_wrap=True)
        static = replace(
            config, discipline="static", order=None, knobs={}, enable_chunked_prefill=None, max_num_batched_tokens=None
        )
        sides = {config.discipline: ours, "static": self._start(static, quiet=True)}
        runs = []
        for turn in range(self.flags.rounds):
            timed = with_arrivals(self._load(turn), Poisson(rate), self.size.seed + turn)
            runs += [replace(self._drive(one, timed, turn), label=label) for label, one in sides.items()]
        tables.print_runs(self.console, runs)
        tails = [_median([run.stretch.ttft.at(99.0) for run in runs if run.label == label]) for label in sides]
        ratio = tails[1] / tails[0]
        self.console.print(f"p99 TTFT of static is {ratio:.1f} x that of {config.discipline}", style="bold")
        return {
            "capacity": capacity,
            "rate": rate,
            "runs": [tables.values(run) for run in runs],
            "ratio": ratio,
        }

    def _load(self, turn: int) -> Workload:
        name = "w1" if self.flags.workload == AGAINST_STATIC else self.flags.workload
        return workload(name, replace(self.size, seed=self.size.seed + turn))

    def _start(self, config: EngineConfig, quiet: bool = False) -> OfflineEngine:
        def progress(text: str) -> None:
            if not quiet:
                self.console.print(text, style="dim", markup=False, soft_wrap=True)

        engine = OfflineEngine(config, progress)
        warm_up(engine)
        return engine

    def _drive(self, engine: OfflineEngine, load: Workload, turn: int = 0, seed: int | None = None) -> Measured:
        if (needed := longest(load)) > engine.max_model_len:
            allowed = f"at least {needed:,} for this workload, or ask for less: --context, --output-len, --scale"
            raise ConfigError("--max-model-len", engine.max_model_len, allowed)
        run = drive(engine, load, self.size.seed + turn if seed is None else seed)
        self.console.print(f"{load.describe()}: {run.figures.seconds:.1f} s", style="dim", markup=False, soft_wrap=True)
        return run


def _best(runs: list[Measured], label: str, name: str) -> float:
    return max(float(getattr(run.figures, name)) for run in runs if run.label == label)


def _median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
