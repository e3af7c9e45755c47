"""Scores of query tokens against decoded keys: one matrix product, relu, weighted sum over heads; windows are not known here.

A logit has the same bits wherever its query and key stand: BLAS sums along head_dim in one order as long as neither
side of the product is shorter than its register blocks, so both sides come in the multiples below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unikernels.operations import Operand

from .matmul import decode, num_threads

#: Largest intermediate [tokens * heads, keys] in float32, per thread. Products run up to three times faster while it stays
#: in cache (measured on AVX2, 512 KiB second-level cache), and the passes over it cost nothing.
SCORES_BYTES = 1 << 20
#: Keys come in multiples of this many: four cache lines of float32, a multiple of every register block of BLAS kernels.
KEY_TILE = 64
#: Most keys of one product, per thread: 1 MiB with 128 elements.
MAX_KEYS = 2048
#: Query rows (tokens * heads) of one product; more gain no speed and make windows less tight.
MAX_ROWS = 512


def tokens_per_tile(num_heads: int) -> int:
    """Return how many query tokens go into one product."""
    return max(1, MAX_ROWS // num_heads)


def keys_per_tile(num_rows: int) -> int:
    """Return how many keys are scored at a time against `num_rows` query rows, a multiple of 2 * `KEY_TILE`."""
    unit = 2 * KEY_TILE
    return min(MAX_KEYS, max(SCORES_BYTES // (4 * num_rows) // unit, 1) * unit) * num_threads()


def aligned_keys(num_keys: int) -> int:
    """Return `num_keys` rounded up to whole tiles."""
    return -(-num_keys // KEY_TILE) * KEY_TILE


def decode_padded(operand: Operand) -> Tensor:
    """Return the operand's rows in float32, followed by zero rows up to whole key tiles."""
    values = decode(operand, torch.float32)
    missing = aligned_keys(operand.mn) - operand.mn
    return torch.nn.functional.pad(values, (0, 0, 0, missing)) if missing else values


class Scorer:
    """Scores with one scratch buffer for the intermediate, reused from tile to tile."""

    def __init__(self, num_heads: int) -> None:
        self._num_heads = num_heads
        self._scratch = torch.empty(0)

    def logits(self, q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Return sum_h weights[t, h] * relu(dot(q[t, h], keys[j])), float32 [tokens, n].

        Args:
            q: float32 [tokens * heads, dim].
            weights: float32 [tokens, heads].
            keys: float32 [n, dim], n a multiple of `KEY_TILE`.
        """
        num_rows, num_keys = q.shape[0], keys.shape[0]
        if self._scratch.numel() < num_rows * num_keys:
            self._scratch = torch.empty(num_rows * num_keys)
        scores = self._scratch[: num_rows * num_keys].view(num_rows, num_keys)
        torch.mm(q, keys.T, out=scores).relu_()
        return torch.bmm(weights.unsqueeze(1), scores.view(-1, self._num_heads, num_keys)).squeeze(1)
