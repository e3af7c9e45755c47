"""Batches of GEMMs on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in programs/batched.py.
"""

from __future__ import annotations

from unikernels.operations import BatchedGemmProblem

from ..programs.variants import BatchedVariant
from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .gemm_form import form_of, variant_for
from .gemm_tiles import Sizes


def why_not(problem: BatchedGemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    return operands.why_not(problem.a, problem.b)


def batched_gemm(problem: BatchedGemmProblem) -> None:
    """D[i] = C[i] + alpha * A[i] @ B[i].T, or their sum."""
    executor = executor_for(problem.d)
    a, b = problem.a, problem.b
    store = epilogues.store(problem.d, problem.c, problem.alpha, problem.epilogue)
    form = form_of(executor, a, b, store)
    gemm = variant_for(form, Sizes(a.mn, b.mn, a.k, 1 if problem.sums_batch else problem.batch))
    executor.run(
        Kernel("batched", BatchedVariant(gemm, problem.sums_batch)),
        *operands.arguments(executor, a, b, form),
        *store.arguments(),
    )
