"""Dense GEMM on the CPU: the matmul kernel plus epilogues."""

from __future__ import annotations

from unikernels.operations import GemmProblem
from unikernels.operations.epilogues import store

from .matmul import matmul_nt, matmul_nt_f32


def gemm(problem: GemmProblem) -> None:
    """D = C + alpha * A @ B.T."""
    if problem.head_splits is not None:
        left, middle, right = problem.head_splits
        product = matmul_nt_f32(problem.a, problem.b).unflatten(1, (-1, left + right))
        heads = problem.d.unflatten(1, (-1, left + middle + right))
        heads[..., :left] = product[..., :left]
        heads[..., left + middle :] = product[..., left:]
    elif problem.epilogue is not None:
        store(matmul_nt_f32(problem.a, problem.b).mul_(problem.alpha), problem.d, problem.epilogue)
    else:
        matmul_nt(problem.a, problem.b, problem.d, accumulate=problem.c, alpha=problem.alpha)
