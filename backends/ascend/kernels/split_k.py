"""Dense GEMMs with few tiles and a long K: parts of K as a batch of float32 products, then their sum.

Only outside deterministic mode: how K is split depends on M, and so does the rounding of a row. No TileLang here.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from unikernels.operations import GemmProblem
from unikernels.operations.operands import Operand
from unikernels.settings import CURRENT

from ..programs.gemm_variant import PAIR, Element, GemmVariant, Packed
from ..programs.variants import BatchedVariant, SumSplitsVariant
from ..runtime.executor import Executor
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .epilogues import Store
from .gemm_tiles import choose, cost, row_class

_SPLITS = (2, 4, 8, 16)
_SUM_CYCLES = 8000  # the second kernel: its launch, and fetching the parts from L2
_WORTHWHILE = 0.8  # of the undivided cost
_BLOCK = 1024


def splits_for(problem: GemmProblem, store: Store, num_cores: int) -> int:
    """Return into how many parts K is divided; 1 leaves it whole."""
    a, b = problem.a, problem.b
    is_plain = store.epilogue == "store" and problem.head_splits is None and problem.d.is_contiguous()
    element, packed = operands.formats(a, b)
    if CURRENT.is_deterministic or not is_plain or element == "fp4":
        return 1
    return _cheapest(problem.m, problem.n, problem.k, element, a.scales is not None, num_cores, packed)


@functools.lru_cache(maxsize=4096)
def _cheapest(
    m: int, n: int, k: int, element: Element, is_scaled: bool, num_cores: int, packed: tuple[Packed, ...]
) -> int:
    def cycles(splits: int) -> float:
        part = k // splits
        tiles = choose(m, n, part, element, is_scaled, 4, "store", num_cores, 32, copies=splits, packed=packed)
        return cost(tiles, row_class(m), n, part, element, num_cores, splits, packed) + (
            _SUM_CYCLES if splits > 1 else 0
        )

    best = min((splits for splits in _SPLITS if k % (splits * PAIR) == 0), key=cycles, default=1)
    return best if cycles(best) < _WORTHWHILE * cycles(1) else 1


def parts(problem: GemmProblem, splits: int) -> Store:
    """Return where the products of the parts go: float32 [splits, m, n]."""
    products = torch.empty(splits, problem.m, problem.n, dtype=torch.float32, device=problem.d.device)
    return epilogues.store(products, None, 1.0, None)


def gemm(executor: Executor, variant: GemmVariant, a: Operand, b: Operand, parts: Store, d: Tensor) -> None:
    """D = A @ B.T by way of `parts`, the products of as many parts of K; `variant` is that of one part.

    Parts are added in order and rounded once: sums of integers are exact.
    """
    splits = parts.d.shape[0]
    executor.run(
        Kernel("batched", BatchedVariant(variant, sums_batch=False)),
        _divided(operands.stored(a, variant.element), a.is_k_major, splits),
        _divided(operands.stored(b, variant.element), b.is_k_major, splits),
        _divided_words(operands.scale_words(executor, a), splits),
        _divided_words(operands.scale_words(executor, b), splits),
        *parts.arguments(),
    )
    total = SumSplitsVariant(splits, operands.OUT[d.dtype], _BLOCK, 2 * variant.num_cores)
    executor.run(Kernel("sum_splits", total), parts.d.view(splits, -1), d.view(-1))


def _divided(matrix: Tensor, is_k_major: bool, splits: int) -> Tensor:
    """Return [splits, rows, k / splits] of [rows, k], or [splits, k / splits, rows] of [k, rows], without a copy."""
    if is_k_major:
        return matrix.view(matrix.shape[0], splits, -1).transpose(0, 1)
    return matrix.view(splits, -1, matrix.shape[1])


def _divided_words(words: Tensor, splits: int) -> Tensor:
    return words if words.dim() == 1 else words.view(splits, -1, words.shape[1])
