"""Log-probabilities of chosen and of most likely tokens, from raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.core.plan import TokenLogprobs
from paceline.errors import PacelineError
from paceline.exec.distribution import BlockMaxima

_CHUNK_ELEMENTS = 1 << 22  # bounds the scratch memory


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, top: Sequence[int]) -> list[TokenLogprobs]:
    """One TokenLogprobs for each row of raw logits [P, vocab].

    token_ids: int64 [P], the token of each row. top: [P], how many alternatives each row reports. The rank of a token
    is one more than the number of tokens that are strictly more likely. Raises PacelineError on NaN.
    """
    rows, vocab = logits.shape
    step = max(1, _CHUNK_ELEMENTS // vocab)
    found: list[TokenLogprobs] = []
    for first in range(0, rows, step):
        part = slice(first, first + step)
        found += _one_chunk(logits[part], token_ids[part, None], top[part])
    return found


def _one_chunk(logits: torch.Tensor, token_ids: torch.Tensor, top: Sequence[int]) -> list[TokenLogprobs]:
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, token_ids)
    if bool(chosen.isnan().any()):
        raise PacelineError("the model gave logits that are NaN or inf, so log-probabilities do not exist")
    ranks = (logprobs > chosen).sum(dim=-1, dtype=torch.int32) + 1
    most = min(max(top), logits.shape[1])
    top_ids: list[list[int]] = [[]] * len(top)
    top_values: list[list[float]] = [[]] * len(top)
    if most:
        maxima = BlockMaxima(logprobs)
        bound = maxima.bound(torch.full_like(token_ids, most))
        values, ids = maxima.at_least(bound, fill=-torch.inf)
        values, order = values.sort(dim=-1, descending=True, stable=True)  # stable: equal ones by lowest id
        ids = ids.gather(1, order)
        top_ids, top_values = ids[:, :most].tolist(), values[:, :most].tolist()
    return [
        TokenLogprobs(token, value, rank, row_ids[:count], row_values[:count])
        for token, value, rank, count, row_ids, row_values in zip(
            token_ids.squeeze(1).tolist(),
            chosen.squeeze(1).tolist(),
            ranks.tolist(),
            top,
            top_ids,
            top_values,
            strict=True,
        )
    ]
