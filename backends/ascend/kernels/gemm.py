"""Dense GEMM on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in gemm_program.py, the choice of tiles in gemm_tiles.py, operands in operands.py.
"""

from __future__ import annotations

from torch import Tensor

from unikernels.operations import GemmProblem
from unikernels.operations.operands import Operand
from unikernels.settings import CURRENT

from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import operands
from .gemm_tiles import choose, transposed_row_multiple
from .gemm_variant import Element, Epilogue, GemmVariant


def why_not(problem: GemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    if problem.head_splits is not None:
        return "it has no kernel that leaves out the middle columns of heads (fp8_gemm_nt_skip_head_mid)"
    if problem.epilogue is not None:
        return f"it has no kernel with the epilogue {type(problem.epilogue).__name__}; Identity and Alpha work"
    return operands.why_not("a", problem.a) or operands.why_not("b", problem.b)


def gemm(problem: GemmProblem) -> None:
    """D = C + alpha * A @ B.T."""
    executor = executor_for(problem.d)
    a, b = operands.in_one_format(executor, problem.a, problem.b)
    variant = variant_for(a, b, problem.d, problem.c, problem.alpha, CURRENT.num_sms or executor.num_cores())
    executor.run(
        Kernel("gemm_program", variant),
        operands.stored(a),
        operands.stored(b),
        operands.scale_words(executor, a),
        operands.scale_words(executor, b),
        operands.unit_rows(problem.c if problem.c is not None else problem.d),
        operands.output(problem.d),
        problem.alpha,
    )


def variant_for(
    a: Operand,
    b: Operand,
    d: Tensor,
    c: Tensor | None,
    alpha: float,
    num_cores: int,
    *,
    rows: int | None = None,
    copies: int = 1,
    within: int | None = None,
) -> GemmVariant:
    """Return the form of one tile, shared by the dense GEMM and every grouping.

    Args:
        a, b: operands in one format.
        rows: rows of A in each of `copies` products; all of them if None.
        within: what the rows of a tile must divide.
    """
    element: Element = a.kind  # type: ignore[assignment]  # why_not refused fp32
    epilogue: Epilogue = "store" if alpha == 1.0 else "scale"
    if c is not None:
        epilogue = "accumulate" if c is d else "add"
    is_scaled = a.scales is not None
    row_multiple = 16 if a.is_k_major and b.is_k_major else transposed_row_multiple(element)
    tiles = choose(
        a.mn if rows is None else rows,
        b.mn,
        a.k,
        element,
        is_scaled,
        d.element_size(),
        epilogue,
        num_cores,
        row_multiple,
        copies=copies,
        within=within,
    )
    return GemmVariant(
        element, is_scaled, a.is_k_major, b.is_k_major, operands.OUT[d.dtype], epilogue, tiles, num_cores
    )
