"""GEMM grouped along M on the CPU: one matmul per run of rows that share a group, on views of the operands.

Reads no row, and no scale row, that belongs to no group; decodes only the groups of B that have rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unikernels.operations import GroupedGemmProblem, Operand
from unikernels.operations.epilogues import store

from .gathered import select_rows
from .matmul import matmul_nt, matmul_nt_f32

#: Rows are sorted by group once labels change more often than this, times the number of groups.
_RUNS_PER_GROUP = 4


def m_grouped_gemm(problem: GroupedGemmProblem) -> None:
    """D[row] = alpha * A[row] @ B[group of row].T."""
    layout = problem.layout
    if layout.kind == "masked":
        for group, count in enumerate(layout.tensor.tolist()):
            if count:
                _multiply(problem, problem.a.group(group).rows(0, count), group, problem.d[group, :count])
    elif layout.kind == "psum":
        _prefix_sums(problem)
    else:
        _labelled(problem)


def _prefix_sums(problem: GroupedGemmProblem) -> None:
    layout, num_rows = problem.layout, problem.a.mn
    start = 0
    for group, end in enumerate(layout.tensor.tolist()):
        end = max(start, end)
        if end > start:
            _multiply(problem, problem.a.rows(start, end), group, problem.d[start:end])
        start = -(-end // layout.alignment) * layout.alignment
        # Zeros also without ensure_zero_padding, where these rows are unspecified: garbage would help nobody.
        problem.d[end : min(start, num_rows)] = 0


def _labelled(problem: GroupedGemmProblem) -> None:
    labels = problem.layout.tensor.clamp(min=-1)
    starts = torch.cat([labels.new_zeros(1), (labels[1:] != labels[:-1]).nonzero().flatten() + 1]).tolist()
    if len(starts) > _RUNS_PER_GROUP * (problem.num_groups + 1):
        _scattered(problem, labels)
        return
    groups = labels[starts].tolist()
    for start, end, group in zip(starts, [*starts[1:], len(labels)], groups, strict=True):
        if group < 0:
            problem.d[start:end] = 0
        else:
            _multiply(problem, problem.a.rows(start, end), group, problem.d[start:end])


def _scattered(problem: GroupedGemmProblem, labels: Tensor) -> None:
    """Labels in no order: gather the rows of each group, multiply, scatter back."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels + 1, minlength=problem.num_groups + 1).tolist()
    padding, *parts = order.split(counts)
    problem.d[padding] = 0
    for group, rows in enumerate(parts):
        if len(rows):
            out = problem.d.new_empty((len(rows), problem.n))
            _multiply(problem, select_rows(problem.a, rows), group, out)
            problem.d.index_copy_(0, rows, out)


def _multiply(problem: GroupedGemmProblem, a: Operand, group: int, out: Tensor) -> None:
    b = problem.b.group(group)
    if problem.epilogue is None:
        matmul_nt(a, b, out, alpha=problem.alpha)
    else:
        store(matmul_nt_f32(a, b).mul_(problem.alpha), out, problem.epilogue)
