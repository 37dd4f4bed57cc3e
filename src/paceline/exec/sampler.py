"""From logits to tokens: every row of a step by its own parameters, in one go."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from paceline.core.params import SamplingParams
from paceline.core.plan import Entered, IntArray, StepPlan, TokenLogprobs
from paceline.errors import PacelineError
from paceline.exec.distribution import apply_min_p, draw, draw_truncated, largest
from paceline.exec.logprobs import token_logprobs
from paceline.exec.penalties import TokenCounts, apply_penalties, has_penalties
from paceline.exec.random_numbers import uniform

_SEED_MASK = 0xFFFFFFFFFFFFFFFF
_GREEDY_BELOW = 1e-5  # a temperature below this is greedy: dividing by it would overflow
_LOG2_E = np.float32(1.0 / np.log(2.0))

LongArray = npt.NDArray[np.int64]


class LogitsError(PacelineError):
    """A row of logits has no finite largest value, so no token can be chosen.

    Attributes:
        rows: the rows of the batch at fault.
        sequence_ids: the sequences in them.
    """

    def __init__(self, rows: list[int], sequence_ids: list[str], values: list[float]) -> None:
        named = ", ".join(
            f"row {row} ({name}): {value}" for row, name, value in zip(rows, sequence_ids, values, strict=True)
        )
        super().__init__(
            f"the model gave no usable logits; largest value of {named}. NaN or inf: the weights are damaged or the "
            "numbers overflow (try --dtype float32); -inf: every token is excluded"
        )
        self.rows = rows
        self.sequence_ids = sequence_ids


class Sampler:
    """Chooses the next token of each row of a step. Names and meanings of the parameters are vLLM's.

    In this order: logit bias; `min_tokens` (end-of-sequence and stop tokens are excluded until enough were generated);
    repetition, frequency and presence penalties; then the largest logit where the temperature is 0, else temperature,
    min-p, top-k, top-p and a draw. Ties go to the lowest token id everywhere.

    The draw spends one uniform number, a function of the sequence's seed and the position of the new token
    (`random_numbers.uniform`), and takes the token where the running sum of probabilities, in order of token id, passes
    it (`distribution.draw`). A sequence therefore gets the same tokens alone, in any batch, in any row and after a
    preemption, as long as its logits are the same; a rounding error in them matters only when the number happens to
    fall within that error of a border between two tokens.

    Parameters of rows lie in arrays, so that a step costs no Python per row; only rows that use a bias, `min_tokens`,
    penalties or logprobs pay for them.
    """

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._eos_token_ids = eos_token_ids
        self._sequence_ids = [""] * max_num_seqs
        self._plain = np.ones(max_num_seqs, np.bool_)  # greedy and nothing else
        self._random = np.zeros(max_num_seqs, np.bool_)
        self._temperature = np.ones(max_num_seqs, np.float32)
        self._top_k = np.full(max_num_seqs, vocab_size, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._min_tokens = np.zeros(max_num_seqs, np.int64)
        self._logprobs = np.full(max_num_seqs, -1, np.int64)  # -1: not asked for
        # Keyed by row, and only for rows that use them.
        self._bias: dict[int, tuple[LongArray, npt.NDArray[np.float32]]] = {}
        self._ends: dict[int, LongArray] = {}  # tokens excluded until min_tokens
        self._counts: dict[int, TokenCounts] = {}

    def enter(self, plan: StepPlan) -> None:
        """Set up the rows of `plan.entered`, forgetting whatever was in them before."""
        for entered in plan.entered:
            self._enter_row(entered)

    def _enter_row(self, entered: Entered) -> None:
        row, params = entered.row, entered.params
        random = params.temperature >= _GREEDY_BELOW
        self._sequence_ids[row] = entered.sequence_id
        self._random[row] = random
        self._temperature[row] = params.temperature if random else 1.0
        self._top_k[row] = min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seed[row] = entered.seed & _SEED_MASK
        self._logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self._enter_exclusions(row, params)
        self._counts.pop(row, None)
        if has_penalties(params):
            self._counts[row] = TokenCounts(params, entered.prompt_length, self._vocab_size)
        self._plain[row] = not (
            random or params.logprobs is not None or row in self._bias or row in self._ends or row in self._counts
        )

    def _enter_exclusions(self, row: int, params: SamplingParams) -> None:
        self._bias.pop(row, None)
        biased = [token for token in params.logit_bias if 0 <= token < self._vocab_size]
        if biased:
            values = [params.logit_bias[token] for token in biased]
            self._bias[row] = np.array(biased, np.int64), np.array(values, np.float32)
        self._ends.pop(row, None)
        ends = {*self._eos_token_ids, *params.stop_token_ids}
        ends = {token for token in ends if 0 <= token < self._vocab_size}
        self._min_tokens[row] = params.min_tokens if ends else 0
        if ends and params.min_tokens:
            self._ends[row] = np.array(sorted(ends), np.int64)

    def only_largest(self, rows: IntArray) -> bool:
        """Whether the largest logit of each of these rows is all there is to know."""
        return bool(self._plain[rows].all())

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, rows: IntArray, plan: StepPlan
    ) -> tuple[IntArray, list[TokenLogprobs | None] | None]:
        """The next token of each of `rows`, and log-probabilities where asked for.

        logits: [S, vocab] float32, one row for each of `rows`; may be changed in place.
        rows: int32 [S], `plan.rows[plan.samples]`.
        Returns tokens int32 [S], and None or a list of S entries that are None for rows that did not ask. Their
        log-probabilities are of the model's own distribution, before any of the parameters (vLLM's `raw_logprobs`).
        Raises LogitsError where a row has no finite largest logit.
        """
        if logits.shape != (len(rows), self._vocab_size):
            raise ValueError(f"logits must be {(len(rows), self._vocab_size)}, got {tuple(logits.shape)}")
        if not len(rows):
            return np.zeros(0, np.int32), None
        logits = logits.float()
        if self.only_largest(rows):
            values, tokens = largest(logits)
            return self.checked(values, tokens, rows), None
        reporting = np.flatnonzero(self._logprobs[rows] >= 0)
        raw = self._select(logits, reporting) if len(reporting) else None  # a copy: the rest works in place
        positions = (plan.starts[plan.samples] + plan.counts[plan.samples]).astype(np.int64)
        self._adjust(logits, rows, plan, positions)
        values, tokens = largest(logits)
        drawn = np.flatnonzero(self._random[rows])
        if len(drawn) and bool(values.isfinite().all()):
            some = logits if len(drawn) == len(rows) else self._select(logits, drawn)
            index = self._tensor(drawn)
            tokens[index] = self._draw(some, values[index], rows[drawn], positions[drawn])
        chosen = self.checked(values, tokens, rows)
        if raw is None:
            return chosen, None
        return chosen, self._report(raw, chosen, rows, reporting)

    def prompt_logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor | IntArray, num: int
    ) -> list[TokenLogprobs]:
        """Log-probabilities of given tokens under given logits, with the `num` most likely alternatives.

        logits: [P, vocab] raw logits, row i of the token before token i. token_ids: [P]. Returns P entries.
        """
        ids = torch.as_tensor(token_ids).to(self._device, torch.int64)
        return token_logprobs(logits, ids, [num] * len(ids)) if len(ids) else []

    def checked(self, values: torch.Tensor, tokens: torch.Tensor, rows: IntArray) -> IntArray:
        """Tokens as int32 [S] on the host, after a look at the largest logit of each row (NaN counts as largest)."""
        finite = values.isfinite()
        if not bool(finite.all()):
            bad = np.flatnonzero(~finite.cpu().numpy())
            names = [self._sequence_ids[row] for row in rows[bad]]
            raise LogitsError(rows[bad].tolist(), names, values.cpu().numpy()[bad].tolist())
        chosen: IntArray = tokens.to(torch.int32).cpu().numpy()
        return chosen

    def _adjust(self, logits: torch.Tensor, rows: IntArray, plan: StepPlan, positions: LongArray) -> None:
        """Logit bias, min_tokens and penalties, in place and only on the rows and tokens concerned."""
        if self._bias:
            found = [(i, *self._bias[row]) for i, row in enumerate(rows.tolist()) if row in self._bias]
            if found:
                index, ids = self._entries([(i, tokens) for i, tokens, _ in found])
                bias = torch.from_numpy(np.concatenate([values for _, _, values in found]))
                logits[index, ids] += bias.to(self._device)
        generated = positions - plan.prompt_lengths[rows]
        early = np.flatnonzero(generated < self._min_tokens[rows])
        if len(early):
            index, ids = self._entries([(int(i), self._ends[int(rows[i])]) for i in early])
            logits[index, ids] = -torch.inf
        if self._counts:
            indices = [i for i, row in enumerate(rows.tolist()) if row in self._counts]
            counts = [self._counts[int(rows[i])] for i in indices]
            for i, count in zip(indices, counts, strict=True):
                count.update(plan.tokens[rows[i], : positions[i]])
            if counts:
                apply_penalties(logits, indices, counts)

    def _draw(self, logits: torch.Tensor, maxima: torch.Tensor, rows: IntArray, positions: LongArray) -> torch.Tensor:
        """Temperature, min-p, top-k, top-p and a draw.

        logits: [D, vocab], changed in place. maxima: [D], the largest of each row. Returns tokens, int64 [D].
        """
        logits -= maxima[:, None]
        logits *= self._tensor(_LOG2_E / self._temperature[rows])[:, None]
        weights = logits.exp2_()  # three times as fast as exp_ on CPU
        if (min_p := self._min_p[rows]).any():
            apply_min_p(weights, self._tensor(min_p))
        top_k, top_p = self._top_k[rows], self._top_p[rows]
        numbers = uniform(self._seed[rows], positions)
        cut = (top_k < self._vocab_size) | (top_p < 1.0)
        if not cut.any():
            return draw(weights, self._tensor(numbers))
        if cut.all():
            return draw_truncated(weights, self._tensor(top_k), self._tensor(top_p), self._tensor(numbers))
        tokens = torch.empty(len(rows), dtype=torch.int64, device=self._device)
        whole, some = np.flatnonzero(~cut), np.flatnonzero(cut)
        tokens[self._tensor(whole)] = draw(self._select(weights, whole), self._tensor(numbers[whole]))
        tokens[self._tensor(some)] = draw_truncated(
            self._select(weights, some),
            self._tensor(top_k[some]),
            self._tensor(top_p[some]),
            self._tensor(numbers[some]),
        )
        return tokens

    def _report(
        self, raw: torch.Tensor, chosen: IntArray, rows: IntArray, reporting: LongArray
    ) -> list[TokenLogprobs | None]:
        tokens = self._tensor(chosen[reporting]).to(torch.int64)
        report: list[TokenLogprobs | None] = [None] * len(rows)
        found = token_logprobs(raw, tokens, self._logprobs[rows[reporting]].tolist())
        for i, logprobs in zip(reporting.tolist(), found, strict=True):
            report[i] = logprobs
        return report

    def _entries(self, found: list[tuple[int, LongArray]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices that address, in one go, the given token ids [..] of each given row of the logits."""
        index = np.repeat([i for i, _ in found], [len(ids) for _, ids in found])
        return self._tensor(index), self._tensor(np.concatenate([ids for _, ids in found]))

    def _select(self, matrix: torch.Tensor, indices: LongArray) -> torch.Tensor:
        """A copy of some rows. (Several times faster than indexing.)"""
        return matrix.index_select(0, self._tensor(indices))

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
