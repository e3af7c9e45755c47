"""How the CPU divides MQA logits into products: little is scored in vain, and the intermediate stays small."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.backends.cpu.kernels import mqa_scores

HEADS, DIM = 8, 32


@pytest.fixture
def products(monkeypatch):
    """Record (query rows, keys) of every product."""
    recorded = []
    logits = mqa_scores.Scorer.logits

    def recording(self, q, weights, keys):
        recorded.append((q.shape[0], keys.shape[0]))
        return logits(self, q, weights, keys)

    monkeypatch.setattr(mqa_scores.Scorer, "logits", recording)
    return recorded


def score(starts, ends, num_keys):
    starts, ends = torch.tensor(starts, dtype=torch.int32), torch.tensor(ends, dtype=torch.int32)
    s = len(starts)
    q = torch.ones(s, HEADS, DIM).to(torch.float8_e4m3fn)
    kv = torch.ones(num_keys, DIM).to(torch.float8_e4m3fn)
    with uk.use_backend("cpu"):
        logits = uk.fp8_mqa_logits(q, (kv, torch.ones(num_keys)), torch.ones(s, HEADS), starts, ends)
    inside = logits != -torch.inf
    assert (logits[inside] == HEADS * DIM).all()
    assert int(inside.sum()) == sum(
        max(end - start, 0) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    )


def test_causal_windows_are_scored_tightly(products):
    s, n = 512, 4096
    score([0] * s, [(i + 1) * n // s for i in range(s)], n)
    useful = s * n / 2
    assert useful <= sum(rows // HEADS * keys for rows, keys in products) <= 1.35 * useful
    # Neighbours do share products: one product per query would be 512 of them and more.
    assert len(products) < 256


def test_distant_windows_are_not_joined(products):
    score([0, 60000, 100, 50000], [50, 60050, 180, 50010], 65536)
    assert sum(rows // HEADS * keys for rows, keys in products) <= 4 * 4 * mqa_scores.KEY_TILE


def test_empty_windows_cost_nothing(products):
    score([5, 9, 0], [5, 3, 0], 65536)
    assert products == []


def test_the_intermediate_is_bounded(products):
    score([0] * 70, [20000] * 70, 20000)
    limit = mqa_scores.SCORES_BYTES * torch.get_num_threads()
    assert max(4 * rows * keys for rows, keys in products) <= limit
    assert max(keys for _, keys in products) <= mqa_scores.MAX_KEYS * torch.get_num_threads()
