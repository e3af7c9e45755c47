"""Dense GEMMs with few tiles and a long K: parts of K as a batch of float32 products, then their sum.

Only outside deterministic mode: how K is split depends on M, and so does the rounding of a row. No TileLang here.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor

from unikernels.settings import CURRENT

from ..programs.gemm_variant import PAIR, GemmForm
from ..programs.variants import BatchedVariant, SumSplitsVariant
from ..runtime.executor import Executor
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .gemm_form import variant_for
from .gemm_tiles import Sizes, choose, cost, row_class

_SPLITS = (2, 4, 8, 16)
_SUM_CYCLES = 8000  # the second kernel: its launch, and fetching the parts from L2
_WORTHWHILE = 0.85  # of the undivided cost
_BLOCK = 1024


def splits_for(d: Tensor, form: GemmForm, sizes: Sizes) -> int:
    """Return into how many parts K is divided; 1 leaves it whole."""
    if CURRENT.is_deterministic or form.epilogue != "store" or form.element == "fp4" or not d.is_contiguous():
        return 1
    return _cheapest(form, sizes)


@functools.lru_cache(maxsize=4096)
def _cheapest(form: GemmForm, sizes: Sizes) -> int:
    def cycles(splits: int) -> float:
        parts = _parts(sizes, splits)
        of_class = replace(parts, m=row_class(parts.m))
        return cost(form, of_class, choose(form, parts)) + (_SUM_CYCLES if splits > 1 else 0)

    best = min((splits for splits in _SPLITS if sizes.k % (splits * PAIR) == 0), key=cycles, default=1)
    return best if cycles(best) < _WORTHWHILE * cycles(1) else 1


def _parts(sizes: Sizes, splits: int) -> Sizes:
    return Sizes(sizes.m, sizes.n, sizes.k // splits, splits)


def gemm(
    executor: Executor,
    form: GemmForm,
    sizes: Sizes,
    splits: int,
    arguments: tuple[Tensor, Tensor, Tensor, Tensor],
    d: Tensor,
) -> None:
    """D = A @ B.T by way of the products of `splits` parts of K.

    Parts are added in order and rounded once: sums of integers are exact.

    Args:
        arguments: of the undivided product, as `operands.arguments` returns them.
    """
    products = torch.empty(splits, sizes.m, sizes.n, dtype=torch.float32, device=d.device)
    store = epilogues.store(products, None, 1.0, None)
    variant = variant_for(replace(form, out=store.out), _parts(sizes, splits))
    a, b, sa, sb = arguments
    executor.run(
        Kernel("batched", BatchedVariant(variant, sums_batch=False)),
        _divided(a, form.a_is_k_major, splits),
        _divided(b, form.b_is_k_major, splits),
        _divided_words(sa, splits),
        _divided_words(sb, splits),
        *store.arguments(),
    )
    total = SumSplitsVariant(splits, operands.OUT[d.dtype], _BLOCK, 2 * form.num_cores)
    executor.run(Kernel("sum_splits", total), products.view(splits, -1), d.view(-1))


def _divided(matrix: Tensor, is_k_major: bool, splits: int) -> Tensor:
    """Return [splits, rows, k / splits] of [rows, k], or [splits, k / splits, rows] of [k, rows], without a copy."""
    if is_k_major:
        return matrix.view(matrix.shape[0], splits, -1).transpose(0, 1)
    return matrix.view(splits, -1, matrix.shape[1])


def _divided_words(words: Tensor, splits: int) -> Tensor:
    return words if words.dim() == 1 else words.view(splits, -1, words.shape[1])
