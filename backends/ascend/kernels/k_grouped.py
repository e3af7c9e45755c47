"""GEMM grouped along K on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in programs/k_grouped.py. Layout tensors are read by kernels only, never on the host.
"""

from __future__ import annotations

from unikernels.operations import KGroupedGemmProblem
from unikernels.settings import CURRENT

from ..programs.variants import KGroupedVariant
from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .gemm import variant_for


def why_not(problem: KGroupedGemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    layout = problem.layout
    return operands.why_not("a", problem.a, columns=layout) or operands.why_not("b", problem.b, columns=layout)


def k_grouped_gemm(problem: KGroupedGemmProblem) -> None:
    """D[g] = C[g] + alpha * A_g @ B_g.T."""
    executor, layout = executor_for(problem.d), problem.layout
    num_cores = CURRENT.num_sms or executor.num_cores()
    a, b = problem.a, problem.b
    depth = -(-problem.k // problem.num_groups)
    store = epilogues.store(problem.d, problem.c, problem.alpha, problem.epilogue)
    gemm = variant_for(a, b, store, num_cores, depth=depth, copies=problem.num_groups)
    executor.run(
        Kernel("k_grouped", KGroupedVariant(gemm, layout.kind, layout.alignment)),
        operands.stored(a, gemm.element),
        operands.stored(b, gemm.element),
        operands.scale_words(executor, a, columns=layout),
        operands.scale_words(executor, b, columns=layout),
        store.c,
        store.d,
        layout.tensor,
        store.factor,
    )
