"""GEMM grouped along K on the CPU: one matmul per group on column views; gaps are not read."""

from __future__ import annotations

from unikernels.operations import KGroupedGemmProblem
from unikernels.operations.epilogues import store

from .matmul import matmul_nt, matmul_nt_f32


def k_grouped_gemm(problem: KGroupedGemmProblem) -> None:
    """D[g] = C[g] + alpha * A_g @ B_g.T."""
    for group, (start, stop) in enumerate(_ranges(problem)):
        d = problem.d[group]
        c = d if problem.c is problem.d else None if problem.c is None else problem.c[group]
        if stop <= start:
            if c is None:
                d.zero_()
            elif c is not d:
                d.copy_(c)
            continue
        a, b = problem.a.columns(start, stop), problem.b.columns(start, stop)
        if problem.epilogue is None:
            matmul_nt(a, b, d, accumulate=c, alpha=problem.alpha)
        else:
            store(matmul_nt_f32(a, b).mul_(problem.alpha), d, problem.epilogue)


def _ranges(problem: KGroupedGemmProblem) -> list[tuple[int, int]]:
    layout = problem.layout
    ranges, stop = [], 0
    for number in layout.tensor.tolist():
        if layout.kind == "plain":
            start, stop = stop, stop + number
        else:
            start = -(-stop // layout.alignment) * layout.alignment
            stop = max(start, number)
        ranges.append((start, stop))
    return ranges
