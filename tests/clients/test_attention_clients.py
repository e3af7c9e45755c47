"""Unchanged DeepGEMM callers, indexer logits over plain and paged caches, against float64 on quantised operands."""

from __future__ import annotations

import pytest
import torch

from unikernels.testing import assert_close
from unikernels.utils import per_custom_dims_cast_to_fp8, saturating_cast_to_fp8

HEADS, DIM, PAGE = 32, 128, 64

#: Contract 1.10: FP32 logits against dequantised operands.
TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def probing(load_client):
    return load_client("serving_probing")


@pytest.fixture(scope="module")
def direct(load_client):
    return load_client("serving_direct")


def _random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _logits(q, keys, weights):
    """[tokens, heads, dim], [keys, dim], [tokens, heads] to [tokens, keys]."""
    scores = torch.einsum("shd,nd->shn", q.double(), keys.double()).relu()
    return torch.einsum("shn,sh->sn", scores, weights.double())


def test_prefill(probing):
    tokens, num_keys = 40, 100
    q = saturating_cast_to_fp8(_random(tokens, HEADS, DIM, seed=0))
    k, sf = per_custom_dims_cast_to_fp8(_random(num_keys, DIM, seed=1), (0,), False)
    weights = _random(tokens, HEADS, seed=2)
    starts = torch.arange(tokens, dtype=torch.int32) // 3
    ends = (starts + 1 + torch.arange(tokens, dtype=torch.int32) * 2).clamp(max=num_keys)
    logits = probing.prefill_logits(q, (k, sf), weights, starts, ends)
    assert logits.shape == (tokens, num_keys)
    column = torch.arange(num_keys)
    is_valid = (column >= starts[:, None]) & (column < ends[:, None])
    expected = _logits(q, k.double() * sf.double()[:, None], weights)
    assert_close(logits[is_valid], expected[is_valid], TOLERANCE)


def _paged_cache(batch, lengths, seed):
    """Return (cache, block table, dequantised keys per sequence); pages are scattered, unused ones hold garbage."""
    pages_each = [-(-length // PAGE) for length in lengths]
    num_pages = sum(pages_each) + 3
    cache = torch.full((num_pages, PAGE * (DIM + 4)), 0x7F, dtype=torch.uint8)  # NaN as E4M3
    free = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.zeros(batch, max(pages_each), dtype=torch.int32)
    keys = []
    for row, (length, count) in enumerate(zip(lengths, pages_each, strict=True)):
        data, sf = per_custom_dims_cast_to_fp8(_random(count * PAGE, DIM, seed=seed + row + 1), (0,), False)
        for index in range(count):
            page = table[row, index] = free.pop()
            part = slice(index * PAGE, (index + 1) * PAGE)
            cache[page, : PAGE * DIM] = data[part].view(torch.uint8).flatten()
            cache[page, PAGE * DIM :] = sf[part].contiguous().view(torch.uint8)
        keys.append((data.double() * sf.double()[:, None])[:length])
    return cache.view(num_pages, PAGE, 1, DIM + 4), table, keys


@pytest.mark.parametrize("client", ["probing", "direct"])
def test_decode(client, request):
    lengths = [1, 64, 65, 200]
    cache, table, keys = _paged_cache(4, lengths, seed=10)
    q = saturating_cast_to_fp8(_random(4, 1, HEADS, DIM, seed=20))
    weights = _random(4, HEADS, seed=21)
    context_lens = torch.tensor(lengths, dtype=torch.int32)
    if client == "probing":
        context_lens = context_lens.view(4, 1)
    logits = request.getfixturevalue(client).decode_logits(q, cache, weights, context_lens, table, 256)
    assert logits.shape == (4, 256)
    for row, length in enumerate(lengths):
        assert_close(logits[row, :length], _logits(q[row], keys[row], weights[row : row + 1])[0], TOLERANCE)


def test_decode_with_flat_lengths_of_older_callers(probing):
    lengths = [3, 130]
    cache, table, keys = _paged_cache(2, lengths, seed=30)
    q = saturating_cast_to_fp8(_random(2, 1, HEADS, DIM, seed=31))
    weights = _random(2, HEADS, seed=32)
    logits = probing.decode_logits(q, cache, weights, torch.tensor(lengths, dtype=torch.int32), table, 192)
    for row, length in enumerate(lengths):
        assert_close(logits[row, :length], _logits(q[row], keys[row], weights[row : row + 1])[0], TOLERANCE)
