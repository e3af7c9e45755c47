"""GEMM grouped along M on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in programs/m_grouped.py. Layout tensors are read by kernels only, never on the host.
"""

from __future__ import annotations

from unikernels.operations import GroupedGemmProblem

from ..programs.variants import MGroupedVariant, ZeroGapsVariant
from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .gemm_form import form_of, variant_for
from .gemm_tiles import Sizes


def why_not(problem: GroupedGemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    return operands.why_not(problem.a, problem.b, rows=problem.layout)


def m_grouped_gemm(problem: GroupedGemmProblem) -> None:
    """D[row] = alpha * A[row] @ B[group of row].T."""
    executor, layout = executor_for(problem.d), problem.layout
    a, b = problem.a, problem.b
    store = epilogues.store(problem.d, None, problem.alpha, problem.epilogue)
    form = form_of(executor, a, b, store)
    sizes = Sizes(_rows_per_group(problem), b.mn, a.k, problem.num_groups)
    gemm = variant_for(form, sizes, within=layout.alignment if layout.kind == "index" else None)
    executor.run(
        Kernel("m_grouped", MGroupedVariant(gemm, layout.kind, layout.alignment)),
        *operands.arguments(executor, a, b, form, rows=layout),
        store.d,
        layout.tensor,
        store.factor,
    )
    if layout.kind == "psum" and layout.ensure_zero_padding:
        # D in its own dtype: the words some epilogues write are of types that a vector core cannot fill.
        out = operands.OUT[problem.d.dtype]
        variant = ZeroGapsVariant(out, layout.alignment, block=8192, num_cores=2 * form.num_cores)
        executor.run(Kernel("zero_gaps", variant), operands.output(problem.d), layout.tensor)


def _rows_per_group(problem: GroupedGemmProblem) -> int:
    """Return a guess at the rows of a group: what the caller expects, or an equal share."""
    layout = problem.layout
    if layout.expected_m:
        return layout.expected_m
    if layout.kind == "masked":
        return problem.a.mn
    return -(-problem.a.mn // problem.num_groups)
