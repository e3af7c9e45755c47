"""Dense GEMM on Ascend, host side: which kernel variant a problem needs.

No TileLang here; the program is in programs/gemm.py.
"""

from __future__ import annotations

from unikernels.operations import GemmProblem

from ..runtime.executor import executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands, split_k, vendor
from .gemm_form import form_of, variant_for
from .gemm_tiles import Sizes


def why_not(problem: GemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    if vendor.is_meant(problem):
        return vendor.why_not(problem)
    if problem.head_splits is not None and not epilogues.run_of(problem.head_splits[0], problem.head_splits[2]):
        return (
            f"it stores runs of 16 columns or more, and left and right of head_splits={problem.head_splits} are no multiples "
            f"of 16"
        )
    return operands.why_not(problem.a, problem.b)


def gemm(problem: GemmProblem) -> None:
    """D = C + alpha * A @ B.T, or an epilogue of the product."""
    if vendor.is_meant(problem):
        vendor.gemm(problem)
        return
    executor = executor_for(problem.d)
    a, b = problem.a, problem.b
    store = epilogues.store(problem.d, problem.c, problem.alpha, problem.epilogue, problem.head_splits)
    form = form_of(executor, a, b, store)
    sizes = Sizes(problem.m, problem.n, problem.k)
    arguments = operands.arguments(executor, a, b, form)
    splits = split_k.splits_for(problem.d, form, sizes)
    if splits > 1:
        split_k.gemm(executor, form, sizes, splits, arguments, problem.d)
        return
    executor.run(Kernel("gemm", variant_for(form, sizes)), *arguments, *store.arguments(), *store.head)
