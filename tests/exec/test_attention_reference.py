"""Paged attention against the definition, one token at a time in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.exec.attention import LayerShape
from paceline.exec.attention.metadata import build_metadata
from paceline.exec.attention.reference import ReferenceAttention

CPU = torch.device("cpu")


def defined(query, keys, values, scale, window, softcap):
    """`query` [heads, size] at the last position of `keys` [L, kv_heads, size], in float64."""
    shared = query.shape[0] // keys.shape[1]
    first = 0 if window is None else max(0, keys.shape[0] - window)
    keys = keys[first:].repeat_interleave(shared, 1)
    values = values[first:].repeat_interleave(shared, 1)
    logits = torch.einsum("hd,lhd->hl", query, keys) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return torch.einsum("hl,lhd->hd", logits.softmax(-1), values)


@st.composite
def steps(draw):
    rows = draw(st.lists(st.tuples(st.integers(0, 90), st.sampled_from([1, 1, 1, 2, 5, 33])), min_size=1, max_size=6))
    return {
        "starts": np.array([start for start, _ in rows], np.int32),
        "counts": np.array([count for _, count in rows], np.int32),
        "block_size": draw(st.sampled_from([1, 4, 16])),
        "kv_heads": draw(st.sampled_from([1, 2, 3])),
        "shared": draw(st.sampled_from([1, 3])),
        "key_size": draw(st.sampled_from([8, 16])),
        "value_size": draw(st.sampled_from([8, 16])),
        "window": draw(st.sampled_from([None, None, 1, 5, 64, 500])),
        "softcap": draw(st.sampled_from([None, None, 3.0])),
        "seed": draw(st.integers(0, 1000)),
    }


@settings(max_examples=120, deadline=None)
@given(steps())
def test_every_token_attends_to_its_own_past_only(step):
    starts, counts, size = step["starts"], step["counts"], step["block_size"]
    lengths = starts + counts
    per_row = -(-lengths // size)
    num_blocks = int(per_row.sum()) + 3
    pool = np.random.default_rng(step["seed"]).permutation(num_blocks)
    table = np.full((len(counts), per_row.max()), pool[-1], np.int32)  # what is past a row's blocks is another block
    used = 0
    for row, blocks in enumerate(per_row):
        table[row, :blocks] = pool[used : used + blocks]
        used += blocks
    generator = torch.Generator().manual_seed(step["seed"])

    def draw(tokens, heads, width):
        return torch.randn(tokens, heads, width, generator=generator)

    heads = step["kv_heads"] * step["shared"]
    keys = [draw(int(n), step["kv_heads"], step["key_size"]) for n in lengths]
    values = [draw(int(n), step["kv_heads"], step["value_size"]) for n in lengths]
    query = draw(int(counts.sum()), heads, step["key_size"])
    attention = ReferenceAttention(torch.float32, CPU)
    attention.allocate([LayerShape(step["kv_heads"], step["key_size"], step["value_size"])], num_blocks, size)
    attention.keys[0].fill_(math.nan)  # what no row wrote must reach no row
    attention.values[0].fill_(math.nan)
    for row, start in enumerate(starts):
        slots = [int(table[row, i // size]) * size + i % size for i in range(start)]
        attention.keys[0][slots] = keys[row][:start]
        attention.values[0][slots] = values[row][:start]
    options = {"scale": 0.3, "window": step["window"], "softcap": step["softcap"]}
    output = attention(
        0,
        query,
        torch.cat([k[s:] for k, s in zip(keys, starts, strict=True)]),
        torch.cat([v[s:] for v, s in zip(values, starts, strict=True)]),
        build_metadata(starts, counts, table, size, CPU),
        **options,
    )
    token = 0
    for row, start in enumerate(starts):
        for position in range(start, lengths[row]):
            past = slice(0, position + 1)
            expected = defined(query[token].double(), keys[row][past].double(), values[row][past].double(), **options)
            torch.testing.assert_close(output[token].double(), expected, atol=1e-5, rtol=1e-5)
            token += 1


def test_rows_do_not_depend_on_their_company():
    """A decode row alone and beside 40 rows of other lengths differs by rounding at most."""
    size, count = 4, 41
    lengths = np.random.default_rng(1).integers(1, 200, count).astype(np.int32)
    per_row = -(-int(lengths.max()) // size)
    table = np.random.default_rng(2).permutation(count * per_row).reshape(count, per_row).astype(np.int32)
    torch.manual_seed(0)
    query, key, value = torch.randn(count, 4, 8), torch.randn(count, 2, 8), torch.randn(count, 2, 8)
    attention = ReferenceAttention(torch.float32, CPU)
    attention.allocate([LayerShape(2, 8, 8)], count * per_row, size)
    attention.keys[0].normal_()
    attention.values[0].normal_()
    ones = np.ones(count, np.int32)
    together = attention(0, query, key, value, build_metadata(lengths - 1, ones, table, size, CPU), scale=0.5)
    for row in range(count):
        one = slice(row, row + 1)
        metadata = build_metadata(lengths[one] - 1, ones[one], table[one], size, CPU)
        alone = attention(0, query[one], key[one], value[one], metadata, scale=0.5)
        torch.testing.assert_close(together[one], alone, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_read_every_source_before_any_is_overwritten(dtype):
    attention = ReferenceAttention(dtype, CPU)
    attention.allocate([LayerShape(1, 2, 2), LayerShape(2, 2, 2)], 4, 3)
    for cache in (*attention.keys, *attention.values):
        cache.normal_()
    before = [cache.clone() for cache in (*attention.keys, *attention.values)]
    attention.copy_blocks(torch.tensor([[0, 1], [1, 0], [1, 3]]))
    for cache, old in zip((*attention.keys, *attention.values), before, strict=True):
        blocks, was = cache.view(4, 3, -1, 2), old.view(4, 3, -1, 2)
        assert torch.equal(blocks, was[[1, 0, 2, 1]])


def test_metadata_lays_rows_on_one_flat_list():
    table = np.array([[4, 2, 7], [0, 5, 6]], np.int32)
    metadata = build_metadata(np.array([3, 0], np.int32), np.array([2, 3], np.int32), table, 4, CPU)
    assert metadata.positions.tolist() == [3, 4, 0, 1, 2]
    assert metadata.slots.tolist() == [4 * 4 + 3, 2 * 4, 0, 1, 2]
    assert metadata.query_starts.tolist() == [0, 2, 5]
    assert metadata.lengths.tolist() == [5, 3]
    assert metadata.block_table.tolist() == [[4, 2], [0, 5]]
    assert (metadata.max_count, metadata.max_length) == (3, 5)
