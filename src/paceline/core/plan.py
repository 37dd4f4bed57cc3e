"""The one thing the scheduler hands to an executor, and the one thing it gets back.

Both are plain values over numpy arrays. An executor needs nothing else of `core`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.params import SamplingParams

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


class Entered(NamedTuple):
    """A sequence that takes a row of the batch in this step, for the first time or again after a preemption.

    An executor sets up whatever it keeps per row (sampler state) from this, and from the tokens and lengths of the
    row; a row keeps its sequence until a later `Entered` names the same row.
    """

    row: int
    sequence_id: str
    params: SamplingParams
    seed: int  # already distinct for each of the n sequences of a request
    prompt_length: int  # tokens of the client's prompt; tokens after it were generated


@dataclass
class StepPlan:
    """One forward pass. R rows are scheduled, T = sum(counts) tokens are computed.

    `tokens` and `block_table` are the scheduler's own matrices, not copies: read only, and only until `complete()`.
    """

    step: int
    rows: IntArray  # [R] rows of the matrices below, in the order decided
    starts: IntArray  # [R] tokens whose K/V exist before this step (computed earlier or cached)
    counts: IntArray  # [R] tokens to compute now: tokens[row, start : start + count]
    samples: BoolArray  # [R] True where the last known token is computed, so that a new token is sampled
    tokens: IntArray  # [max_num_seqs, max_model_len] token ids: prompt, then generated
    block_table: IntArray  # [max_num_seqs, blocks per sequence] token i of a row: block_table[row, i // block_size]
    prompt_lengths: IntArray  # [max_num_seqs]
    entered: list[Entered] = field(default_factory=list)
    copies: IntArray = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    """[C, 2] (source, destination) whole-block copies, done before anything else of the step.
    All sources are read before any destination is written; destinations are distinct."""
    swap_out: IntArray = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    """[C, 2] (device block, host block) to copy to the host. Read, as the sources of `copies` are, before any write
    of the step. A plan may have these and no rows."""
    swap_in: IntArray = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    """[C, 2] (host block, device block) to copy to the device: after `swap_out` and `copies`, before the forward."""
    drop_disk: list[bytes] = field(default_factory=list)
    """Content keys to remove from disk: before anything else of the step."""
    to_disk: list[tuple[int, bytes]] = field(default_factory=list)
    """(host block, key) to write to disk. The host blocks are read before anything is written to the host."""
    from_disk: list[tuple[bytes, int]] = field(default_factory=list)
    """(key, host block) to read from disk. What cannot be read or written is named in `StepResult.lost`."""


class Moved(NamedTuple):
    """Blocks a step moved between tiers, and the seconds it took."""

    out_blocks: int = 0  # device to host
    out_seconds: float = 0.0
    in_blocks: int = 0  # host to device
    in_seconds: float = 0.0
    read_blocks: int = 0  # disk to host
    read_seconds: float = 0.0
    written_blocks: int = 0  # host to disk
    write_seconds: float = 0.0


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position, of the model's own distribution: before bias, penalties and temperature.

    This is vLLM's default, `raw_logprobs`.
    """

    token: int
    logprob: float
    rank: int  # 1 is the most likely token
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass
class StepResult:
    """What an executor found in one step.

    `tokens[i]` belongs to the i-th True of `plan.samples`. `logprobs`, when given, runs along `tokens`, with None for
    rows that did not ask. `prompt_logprobs` maps a row to (position of the token, its logprobs) for each prompt token
    whose log-probability became known in this step (the first prompt token has none).
    """

    tokens: IntArray  # [S]
    seconds: float = 0.0
    logprobs: list[TokenLogprobs | None] | None = None
    prompt_logprobs: dict[int, list[tuple[int, TokenLogprobs]]] | None = None
    moved: Moved | None = None  # None: nothing was
    lost: list[bytes] = field(default_factory=list)  # content keys disk did not give back, or did not take
    extra: dict[str, Any] = field(default_factory=dict)
