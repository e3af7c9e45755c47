"""GEMM grouped along K on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in programs/k_grouped.py. Layout tensors are read by kernels only, never on the host.
"""

from __future__ import annotations

from unikernels.operations import KGroupedGemmProblem

from ..programs.variants import KGroupedVariant
from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .gemm_form import form_of, variant_for
from .gemm_tiles import Sizes


def why_not(problem: KGroupedGemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    return operands.why_not(problem.a, problem.b, columns=problem.layout)


def k_grouped_gemm(problem: KGroupedGemmProblem) -> None:
    """D[g] = C[g] + alpha * A_g @ B_g.T."""
    executor, layout = executor_for(problem.d), problem.layout
    a, b = problem.a, problem.b
    store = epilogues.store(problem.d, problem.c, problem.alpha, problem.epilogue)
    form = form_of(executor, a, b, store)
    gemm = variant_for(form, Sizes(a.mn, b.mn, -(-problem.k // problem.num_groups), problem.num_groups))
    executor.run(
        Kernel("k_grouped", KGroupedVariant(gemm, layout.kind, layout.alignment)),
        *operands.arguments(executor, a, b, form, columns=layout),
        store.c,
        store.d,
        layout.tensor,
        store.factor,
    )
