"""Paceline beside vLLM's CPU build, OpenVINO GenAI, llama.cpp and transformers: the same token ids, the same cores.

    benchmarks/peers/run --folder /tmp/peers --json peers.json

makes an environment for each engine below the folder, converts the model, then runs every row's workload on each engine
in turns (A B A B), and prints ratios. Only one engine runs at a time; the others are stopped meanwhile. By hand, not in
CI: installing takes a quarter of an hour, measuring as long again.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import contestants
import convert
import environments
from contestants import CONTESTANTS, Driven
from ratios import ROWS, Row

from paceline.bench.offline import figures, records_of
from paceline.bench.offline_tables import machine
from paceline.bench.offline_workloads import FIRST_TOKEN, workload
from paceline.workload.export import clean

VOCABULARY = 49152
STATIC, MEMORY = "static", "memory"
MOST_REST, GOAL_REST = 400, 250  # MiB beside weights and KV


@dataclass
class Comparison:
    """One run of the command."""

    options: argparse.Namespace
    forms: dict[str, Path]
    driven: dict[str, Driven] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each contestant said of itself."""

    def one(self, name: str) -> None:
        """A row of the table, or the rows of memory."""
        {STATIC: self.static, MEMORY: self.memory}.get(name, lambda: self.row(name))()

    def row(self, name: str) -> None:
        """Run a row, print it, keep it."""
        row, options = ROWS[name], self.options
        sides = [side for side in (row.ours, *row.peers) if side.split(",")[0].split(" ")[0] not in options.without]
        for side in set(self.driven) - set(sides) - set(options.keep):
            self.driven.pop(side).close()
        # Tokens of its own for every row, or a prefix cache would know them from the row before.
        seed = options.seed + 1000 * (1 + list(ROWS).index(name))
        self._warm_up(row, sides, seed + 999)
        turns: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for turn in range(options.rounds):
            for side in sides:
                turns[side].append(self._turn(row, side, options.scale, seed + turn))
                say(f"{row.title}: {side}: {turns[side][-1][row.figure]:,.4g} {row.unit}")
        best = {side: row.best([one[row.figure] for one in found]) for side, found in turns.items()}
        peers = {side: value for side, value in best.items() if side != row.ours}
        result: dict[str, Any] = {"row": name, "title": row.title, "unit": row.unit, "best": best, "turns": turns}
        result |= {"bound": row.bound, "goal": row.goal, "lower": row.lower}
        if peers:
            ratio = best[row.ours] / row.best(list(peers.values()))
            result |= {"ratio": ratio, "bound_met": row.met(ratio, row.bound), "goal_met": row.met(ratio, row.goal)}
        self.results.append(result)

    def static(self) -> None:
        """Continuous against static batching, both ours."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "static.json"
            command = [sys.executable, "-m", "paceline", "bench", "offline", "--workload", "continuous-vs-static"]
            command += ["--model", str(self.forms["bf16"]), "--dtype", "bfloat16", "--json", str(path)]
            command += ["--scale", str(self.options.scale), "--threads", str(len(self.options.cores))]
            cores = ",".join(map(str, self.options.cores))
            subprocess.run(["taskset", "-c", cores, *command], check=True, stdout=sys.stderr)
            found = json.loads(path.read_text())
        tails = {run["label"]: run["p99_ttft_ms"] / 1e3 for run in found["runs"]}
        self.results.append(
            {
                "row": STATIC,
                "title": f"continuous over static at {found['rate']:.2f} requests/s",
                "unit": "s, p99 TTFT",
                "best": tails,
                "ratio": found["ratio"],
                "bound": 3.0,
                "goal": 10.0,
                "bound_met": found["ratio"] >= 3.0,
                "goal_met": found["ratio"] >= 10.0,
                "found": found,
            }
        )

    def memory(self) -> None:
        """What our process held beside weights and KV after the rows before; peers' whole for comparison."""
        held: dict[str, dict[str, Any]] = {}
        for result in self.results:
            for side, turns in result.get("turns", {}).items():
                held[side] = max([*turns, held.get(side, turns[0])], key=lambda one: int(one["resident"]))
        for side in [side for side in held if "rest" in held[side]]:
            one = held[side]
            parts = {"weights": one["weights"], "KV": one["kv"], "rest": one["rest"]}
            rest = one["rest"] / 2**20
            self.results.append(
                {
                    "row": MEMORY,
                    "title": f"resident beside weights and KV: {side}",
                    "unit": "MiB",
                    "best": {name: size / 2**20 for name, size in parts.items()},
                    "ratio": rest,
                    "bound": MOST_REST,
                    "goal": GOAL_REST,
                    "bound_met": rest <= MOST_REST,
                    "goal_met": rest <= GOAL_REST,
                    "resident_of_all": {name: found["resident"] / 2**20 for name, found in held.items()},
                }
            )

    def close(self) -> None:
        for one in self.driven.values():
            one.close()

    def _warm_up(self, row: Row, sides: Sequence[str], seed: int) -> None:
        for side in sides:
            if side not in self.driven:
                self.driven[side] = self._start(side)
                self.about[side] = self.driven[side].about
            self._turn(row, side, min(self.options.scale, 0.1), seed)

    def _start(self, side: str) -> Driven:
        one, options = CONTESTANTS[side], self.options
        one = replace(one, settings={**one.settings, **options.settings.get(side, {})})
        python = Path(sys.executable)
        if one.environment is not None:
            python = environments.python_of(one.environment, options.folder, options.environments)
        if one.form == "openvino" and "openvino" not in self.forms:
            self.forms["openvino"] = options.folder / "models" / "openvino"
            exporter = environments.python_of("openvino-export", options.folder, options.environments)
            contestants.export_openvino(exporter, self.forms["bf16"], self.forms["openvino"])
        log = options.folder / f"{side.replace(', ', '-').replace(' ', '-')}.log"
        say(f"starting {side}; its log: {log}")
        return Driven(python, one, self.forms[one.form], options.cores, log)

    def _turn(self, row: Row, side: str, scale: float, seed: int) -> dict[str, Any]:
        load = workload(row.workload, row.load_size(scale, seed))
        prompts = [request.token_ids(VOCABULARY, seed, FIRST_TOKEN).tolist() for request in load.requests]
        answer = self.driven[side].run(prompts, [request.output_len for request in load.requests])
        stamps = answer.pop("stamps")
        return {**asdict(figures(records_of(load, stamps))), **answer}


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: one line a row."""
    lines = ["| workload | what | of each | ratio | bound | goal |", "|---|---|---|---|---|---|"]
    for one in results:
        values = ", ".join(f"{side} {value:,.4g}" for side, value in one["best"].items())
        limits = [_limit(one[f"{name}_met"], one[name]) if "ratio" in one else "" for name in ("bound", "goal")]
        ratio = f"{one['ratio']:.3g}" if "ratio" in one else "-"
        lines.append(f"| {one['title']} | {one['unit']} | {values} | {ratio} | {limits[0]} | {limits[1]} |")
    return lines


def _limit(met: bool | None, limit: float | None) -> str:
    return "" if limit is None or met is None else f"{limit:g} {'met' if met else 'missed'}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(options, convert.convert(options.model, options.folder / "models"))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # what was measured by then is printed
    try:
        for name in options.rows:
            comparison.one(name)
    finally:
        comparison.close()
        print("\n".join(table(comparison.results)))
        if options.json is not None:
            asked = {name: str(value) for name, value in vars(options).items()}
            saved = {"asked": asked, "machine": machine(), "engines": comparison.about, "rows": comparison.results}
            options.json.write_text(json.dumps(clean(saved), indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*(name for name in ROWS if name != "transformers"), STATIC, MEMORY]
    parser.add_argument("--folder", type=Path, required=True, help="environments, models and logs go there")
    parser.add_argument("--model", default="smollm2-135m", help="a .gguf file")
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), default=every, help=f"of {', '.join(every)}, transformers"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all lengths")
    parser.add_argument("--cores", type=lambda text: [int(core) for core in text.split(",")], default=[0, 1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=FOLDER", help="an environment that is there"
    )
    parser.add_argument("--without", action="append", default=[], help="an engine to leave out")
    parser.add_argument("--keep", action="append", default=[], help="a contestant that stays loaded between rows")
    parser.add_argument("--set", action="append", default=[], metavar="CONTESTANT:JSON", help="other settings")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.environments = {name: Path(place) for name, _, place in (one.partition("=") for one in options.env)}
    options.settings = {name: json.loads(text) for name, _, text in (one.partition(":") for one in options.set)}
    for name in options.rows:
        if name not in ROWS and name not in (STATIC, MEMORY):
            parser.error(f"no row is called {name}")
    return options


if __name__ == "__main__":
    main()
