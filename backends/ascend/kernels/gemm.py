"""Dense GEMM on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in programs/gemm.py, the choice of tiles in gemm_tiles.py, operands in operands.py.
"""

from __future__ import annotations

from unikernels.operations import GemmProblem
from unikernels.operations.operands import Operand
from unikernels.settings import CURRENT

from ..programs.gemm_variant import GemmVariant
from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands, split_k, vendor
from .epilogues import Store
from .gemm_tiles import choose, transposed_row_multiple
from .gemm_tuned import TunedKey, tuned_tiles


def why_not(problem: GemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    if vendor.is_meant(problem):
        return vendor.why_not(problem)
    if problem.head_splits is not None and not epilogues.run_of(problem.head_splits[0], problem.head_splits[2]):
        return (
            f"it stores runs of 16 columns or more, and left and right of head_splits={problem.head_splits} are no multiples "
            f"of 16"
        )
    return operands.why_not("a", problem.a) or operands.why_not("b", problem.b)


def gemm(problem: GemmProblem) -> None:
    """D = C + alpha * A @ B.T, or an epilogue of the product."""
    if vendor.is_meant(problem):
        vendor.gemm(problem)
        return
    executor = executor_for(problem.d)
    a, b = problem.a, problem.b
    store = epilogues.store(problem.d, problem.c, problem.alpha, problem.epilogue, problem.head_splits)
    num_cores = CURRENT.num_sms or executor.num_cores()
    splits = split_k.splits_for(problem, store, num_cores)
    if splits > 1:
        parts = split_k.parts(problem, splits)
        variant = variant_for(a, b, parts, num_cores, depth=problem.k // splits, copies=splits)
        split_k.gemm(executor, variant, a, b, parts, problem.d)
        return
    variant = variant_for(a, b, store, num_cores)
    executor.run(
        Kernel("gemm", variant),
        operands.stored(a, variant.element),
        operands.stored(b, variant.element),
        operands.scale_words(executor, a),
        operands.scale_words(executor, b),
        *store.arguments(),
        *store.head,
    )


def variant_for(
    a: Operand,
    b: Operand,
    store: Store,
    num_cores: int,
    *,
    rows: int | None = None,
    depth: int | None = None,
    copies: int = 1,
    within: int | None = None,
) -> GemmVariant:
    """Return the form of one tile, shared by the dense GEMM and every grouping.

    Args:
        store: how the product becomes D.
        rows, depth: rows of A and elements along K in each of `copies` products; all of them if None.
        within: what the rows of a tile must divide.
    """
    element, packed = operands.formats(a, b)
    is_scaled = a.scales is not None
    row_multiple = 16 if a.is_k_major and b.is_k_major else transposed_row_multiple(element)
    tiles = None
    if copies == 1 and within is None and store.epilogue == "store" and not packed:
        tiles = tuned_tiles(
            TunedKey(element, is_scaled, a.is_k_major, b.is_k_major, store.out, num_cores, a.mn, b.mn, a.k)
        )
    tiles = tiles or choose(
        a.mn if rows is None else rows,
        b.mn,
        a.k if depth is None else depth,
        element,
        is_scaled,
        store.d.element_size(),
        store.epilogue,
        num_cores,
        max(row_multiple, store.row_multiple),
        copies=copies,
        within=within,
        column_multiple=store.column_multiple,
        packed=packed,
    )
    return GemmVariant(
        element,
        is_scaled,
        a.is_k_major,
        b.is_k_major,
        store.out,
        store.epilogue,
        tiles,
        num_cores,
        store.sfd,
        store.counts_clamped,
        store.run,
        packed,
    )
