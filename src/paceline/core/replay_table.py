"""A replay as one line of a table: what each step ran, when each request was done, what was computed again.

`A:p7` is a prompt of 7 tokens, `A:p3(5/9)` a part of 3 after which 5 of 9 are done, `A:d` a decode; before a semicolon
stands who was preempted (`pre`), swapped out (`out`) or came back from the host (`in`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_LEAVES = {"recompute": "pre", "swap": "out", "hold": "hold"}


@dataclass(frozen=True)
class Row:
    """`steps`: by number from 0 on, "" for an empty one; `done`: request id -> the step at whose end it finished."""

    steps: list[str]
    done: dict[str, int]
    recomputed: int

    def markdown(self, name: str, steps: int) -> str:
        """A line of a table with so many columns for steps."""
        done = "/".join(str(self.done[request]) for request in sorted(self.done))
        rest = [""] * (steps - len(self.steps))
        return "| " + " | ".join([name, *self.steps, *rest, done, str(self.recomputed)]) + " |"


def header(steps: int, ids: Iterable[str]) -> list[str]:
    """The first two lines of a table of rows of so many steps."""
    done = "done " + "/".join(sorted(ids))
    columns = ["discipline", *(f"s{step}" for step in range(steps)), done, "recomputed tokens"]
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]


def table_row(lines: Iterable[Mapping[str, Any]], prompts: Mapping[str, int]) -> Row:
    """`lines` as `replay` yields them, `prompts` the prompt tokens of every request."""
    computed = dict.fromkeys(prompts, 0)
    known = dict(prompts)
    steps: list[str] = []
    done: dict[str, int] = {}
    recomputed = 0
    for line in lines:
        if "summary" in line:
            recomputed = line["summary"]["recomputed_tokens"]
            continue
        steps += [""] * (line["step"] - len(steps))
        moves = [f"{_LEAVES[how]} {name}" for name, how in line["preempted"]]
        moves += [f"in {name}" for name in line["swapped_in"]]
        computed.update(line["cached"])
        runs = []
        for name, count in line["scheduled"]:
            first, end = computed[name], computed[name] + count
            size, decodes = known[name], count == 1 and end == known[name] > prompts[name]
            part = "" if (first == line["cached"].get(name) and end == size) else f"({end}/{size})"
            runs.append(f"{name}:d" if decodes else f"{name}:p{count}{part}")
            computed[name] = end
            known[name] += end == size
        steps.append("; ".join(filter(None, [" ".join(moves), " ".join(runs)])))
        done.update(dict.fromkeys(line["finished"], line["step"]))
    return Row(steps, done, recomputed)
