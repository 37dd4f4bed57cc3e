"""How a sequence is preempted: what becomes of its K/V. Chosen by name for any row, `--preemption NAME`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from paceline.core.keeper import HOLD, RECOMPUTE, SWAP
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.request import Sequence
    from paceline.core.step_builder import StepBuilder

RULE_OF_THUMB = 128  # tokens below which computing again is taken to be cheaper than swapping


class Preemption(Protocol):
    def choose(self, builder: StepBuilder, sequence: Sequence, blocks: bool) -> str:
        """Recompute, swap or hold, for a running sequence. `blocks`: its blocks are wanted; else only its row is."""
        ...


@dataclass(frozen=True)
class Recompute:
    """The blocks go back to the cache; what is evicted before the sequence returns is computed again."""

    def choose(self, builder: StepBuilder, sequence: Sequence, blocks: bool) -> str:
        return RECOMPUTE


@dataclass(frozen=True)
class Swap:
    """The blocks are copied to the host, and back; recompute when the host is full."""

    def choose(self, builder: StepBuilder, sequence: Sequence, blocks: bool) -> str:
        return SWAP


@dataclass(frozen=True)
class Hold:
    """The blocks stay where they are until somebody cannot run without them."""

    def choose(self, builder: StepBuilder, sequence: Sequence, blocks: bool) -> str:
        return HOLD


@dataclass(frozen=True)
class Threshold:
    """Recompute a sequence of fewer than `tokens` computed tokens, swap a longer one. The practitioners' rule of thumb
    is 128."""

    tokens: int = RULE_OF_THUMB

    def choose(self, builder: StepBuilder, sequence: Sequence, blocks: bool) -> str:
        return SWAP if int(builder.batch.computed[sequence.row]) >= self.tokens else RECOMPUTE


@dataclass(frozen=True)
class Auto:
    """The cheaper of recompute and swap by the costs measured so far; hold where only the row is wanted.

    Before both were measured, the rule of thumb: nothing has been swapped yet, or no prompt computed.
    """

    def choose(self, builder: StepBuilder, sequence: Sequence, blocks: bool) -> str:
        if not blocks:
            return HOLD
        tokens = int(builder.batch.computed[sequence.row])
        swap = builder.costs.swap(-(-tokens // builder.batch.block_size))
        again = builder.costs.compute(tokens)
        if swap is None or again is None:
            return SWAP if tokens >= RULE_OF_THUMB else RECOMPUTE
        return SWAP if swap < again else RECOMPUTE


PREEMPTIONS: dict[str, Callable[[], Preemption]] = {
    RECOMPUTE: Recompute,
    SWAP: Swap,
    HOLD: Hold,
    "auto": Auto,
    "threshold": Threshold,
}


def preemption(name: str) -> Preemption:
    """By name; `threshold:128` for the rule with its number. ConfigError for any other."""
    kind, colon, number = name.partition(":")
    if kind == "threshold" and colon and number.isascii() and number.isdigit():
        return Threshold(int(number))
    if colon or kind not in PREEMPTIONS:
        raise ConfigError("--preemption", name, f"one of {', '.join(PREEMPTIONS)}, or threshold:TOKENS")
    return PREEMPTIONS[kind]()
