"""Grouped GEMMs with a gathered operand on the CPU (the legacy functions), and the gathers themselves."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unikernels.operations import GatheredKGroupedGemmProblem, GatheredMGroupedGemmProblem, Operand

from .matmul import matmul_nt


def select_rows(operand: Operand, rows: Tensor) -> Operand:
    """Return a K-major operand of the given rows, in this order; one scale per row, if there are scales."""
    data, scales = operand.data, operand.scales
    if data.element_size() == 1:
        data = data.view(torch.uint8).index_select(0, rows).view(data.dtype)
    else:
        data = data.index_select(0, rows)
    if scales is not None:
        scales = replace(scales, data=scales.data.index_select(0, rows), mn=len(rows))
    return replace(operand, data=data, mn=len(rows), scales=scales)


def gathered_m_grouped_gemm(problem: GatheredMGroupedGemmProblem) -> None:
    """D[row] = A[row_indices[row]] @ B[labels[row]].T."""
    is_padding = (problem.labels < 0) | (problem.row_indices < 0)
    problem.d[is_padding] = 0
    labels = problem.labels.masked_fill(is_padding, -1)
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels + 1, minlength=problem.b.data.shape[0] + 1).tolist()
    _, *parts = order.split(counts)
    for group, rows in enumerate(parts):
        if len(rows):
            out = problem.d.new_empty((len(rows), problem.b.mn))
            matmul_nt(select_rows(problem.a, problem.row_indices[rows]), problem.b.group(group), out)
            problem.d.index_copy_(0, rows, out)


def gathered_k_grouped_gemm(problem: GatheredKGroupedGemmProblem) -> None:
    """D[g] (+)= sum over k of A[:, ia(k)] B[:, ib(k)].T."""
    for group, (start, stop) in enumerate(zip(problem.k_start.tolist(), problem.k_end.tolist(), strict=True)):
        d = problem.d[group]
        indices = problem.k_indices[start : max(start, stop)]  # a negative stop would count from the end
        positions = (indices >= 0).nonzero().flatten()
        if not len(positions):
            if not problem.accumulates:
                d.zero_()
            continue
        sources = {"a": positions + start, "b": positions + start, problem.gathers: indices[positions]}
        a, b = _select_columns(problem.a, sources["a"]), _select_columns(problem.b, sources["b"])
        matmul_nt(a, b, d, accumulate=d if problem.accumulates else None)


def _select_columns(operand: Operand, columns: Tensor) -> Operand:
    """Return a plain MN-major operand of the given columns."""
    data = operand.data.transpose(0, 1).index_select(0, columns).transpose(0, 1)
    return replace(operand, data=data, k=len(columns))
