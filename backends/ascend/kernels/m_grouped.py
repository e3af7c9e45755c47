"""GEMM grouped along M on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in programs/m_grouped.py. Layout tensors are read by kernels only, never on the host.
"""

from __future__ import annotations

from unikernels.operations import GroupedGemmProblem
from unikernels.settings import CURRENT

from ..programs.variants import MGroupedVariant, ZeroGapsVariant
from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .gemm import variant_for


def why_not(problem: GroupedGemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    return operands.why_not("a", problem.a, problem.layout) or operands.why_not("b", problem.b)


def m_grouped_gemm(problem: GroupedGemmProblem) -> None:
    """D[row] = alpha * A[row] @ B[group of row].T."""
    executor, layout = executor_for(problem.d), problem.layout
    num_cores = CURRENT.num_sms or executor.num_cores()
    a, b = problem.a, problem.b
    store = epilogues.store(problem.d, None, problem.alpha, problem.epilogue)
    gemm = variant_for(
        a,
        b,
        store,
        num_cores,
        rows=_rows_per_group(problem),
        copies=problem.num_groups,
        within=layout.alignment if layout.kind == "index" else None,
    )
    executor.run(
        Kernel("m_grouped", MGroupedVariant(gemm, layout.kind, layout.alignment)),
        operands.stored(a, gemm.element),
        operands.stored(b, gemm.element),
        operands.scale_words(executor, a, layout),
        operands.scale_words(executor, b),
        store.d,
        layout.tensor,
        store.factor,
    )
    if layout.kind == "psum" and layout.ensure_zero_padding:
        variant = ZeroGapsVariant(store.out, layout.alignment, block=8192, num_cores=2 * num_cores)
        executor.run(Kernel("zero_gaps", variant), store.d, layout.tensor)


def _rows_per_group(problem: GroupedGemmProblem) -> int:
    """Return a guess at the rows of a group: what the caller expects, or an equal share."""
    layout = problem.layout
    if layout.expected_m:
        return layout.expected_m
    if layout.kind == "masked":
        return problem.a.mn
    return -(-problem.a.mn // problem.num_groups)
