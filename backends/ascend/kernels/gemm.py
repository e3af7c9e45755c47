"""Dense GEMM on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in gemm_program.py, the choice of tiles in gemm_tiles.py, operands in operands.py.
"""

from __future__ import annotations

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
    variant = _variant(problem, a, b, CURRENT.num_sms or executor.num_cores())
    executor.run(
        Kernel("gemm_program", variant),
        operands.stored(a),
        operands.stored(b),
        operands.scale_words(executor, a),
        operands.scale_words(executor, b),
        operands.unit_rows(problem.c if problem.c is not None else problem.d),
        operands.unit_rows(problem.d),
        problem.alpha,
    )


def _variant(problem: GemmProblem, a: Operand, b: Operand, num_cores: int) -> GemmVariant:
    element: Element = a.kind  # type: ignore[assignment]  # why_not refused fp32
    epilogue: Epilogue = "store" if problem.alpha == 1.0 else "scale"
    if problem.c is not None:
        epilogue = "accumulate" if problem.c is problem.d else "add"
    is_scaled = a.scales is not None
    row_multiple = 16 if a.is_k_major and b.is_k_major else transposed_row_multiple(element)
    out_bytes = problem.d.element_size()
    tiles = choose(problem.m, problem.n, problem.k, element, is_scaled, out_bytes, epilogue, num_cores, row_multiple)
    return GemmVariant(
        element, is_scaled, a.is_k_major, b.is_k_major, operands.OUT[problem.d.dtype], epilogue, tiles, num_cores
    )
