"""Batches of GEMMs on the CPU: one matmul per entry; sums over the batch join entries along K first."""

from __future__ import annotations

import torch

from unikernels.operations import BatchedGemmProblem, Operand
from unikernels.operations.epilogues import store

from .matmul import matmul_nt, matmul_nt_f32

#: K elements per product when short entries are joined; the joined copy then stays in cache.
_JOINED_K = 4096


def batched_gemm(problem: BatchedGemmProblem) -> None:
    """D[i] = C[i] + alpha * A[i] @ B[i].T, or their sum."""
    if problem.sums_batch:
        _summed(problem)
        return
    for index in range(problem.batch):
        a, b, d = problem.a.group(index), problem.b.group(index), problem.d[index]
        if problem.epilogue is None:
            c = d if problem.c is problem.d else None if problem.c is None else problem.c[index]
            matmul_nt(a, b, d, accumulate=c, alpha=problem.alpha)
        else:
            product = matmul_nt_f32(a, b).mul_(problem.alpha)
            store(product, d, problem.epilogue, first_column_block=index * problem.n // 32)


def _summed(problem: BatchedGemmProblem) -> None:
    total = torch.empty((problem.m, problem.n))
    step = max(1, _JOINED_K // problem.k)
    for start in range(0, problem.batch, step):
        stop = min(start + step, problem.batch)
        a, b = _joined(problem.a, start, stop), _joined(problem.b, start, stop)
        matmul_nt(a, b, total, accumulate=total if start else None)
    total.mul_(problem.alpha)
    if problem.c is not None:
        total.add_(problem.c)
    store(total, problem.d, problem.epilogue)


def _joined(operand: Operand, start: int, stop: int) -> Operand:
    """Return entries start:stop side by side along K; operands of a sum over the batch are plain (no scales)."""
    if stop - start == 1:
        return operand.group(start)
    # `flatten` gives a view, with unit stride along mn, where entries are one element long.
    data = operand.data[start:stop].transpose(0, 1).flatten(1).contiguous()
    return Operand(data, operand.kind, operand.mn, data.shape[1], True)
