"""Batches of GEMMs on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in programs/batched.py.
"""

from __future__ import annotations

from unikernels.operations import BatchedGemmProblem
from unikernels.settings import CURRENT

from ..programs.variants import BatchedVariant
from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .gemm import variant_for


def why_not(problem: BatchedGemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    return operands.why_not("a", problem.a) or operands.why_not("b", problem.b)


def batched_gemm(problem: BatchedGemmProblem) -> None:
    """D[i] = C[i] + alpha * A[i] @ B[i].T, or their sum."""
    executor = executor_for(problem.d)
    num_cores = CURRENT.num_sms or executor.num_cores()
    a, b = problem.a, problem.b
    copies = 1 if problem.sums_batch else problem.batch
    store = epilogues.store(problem.d, problem.c, problem.alpha, problem.epilogue)
    gemm = variant_for(a, b, store, num_cores, copies=copies)
    executor.run(
        Kernel("batched", BatchedVariant(gemm, problem.sums_batch)),
        operands.stored(a, gemm.element),
        operands.stored(b, gemm.element),
        operands.scale_words(executor, a),
        operands.scale_words(executor, b),
        *store.arguments(),
    )
