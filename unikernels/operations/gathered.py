"""Grouped GEMMs that gather one operand through indices (the legacy functions): problems, definitions and cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .base import Operation
from .gathered_cases import gathered_k_cases, gathered_m_cases
from .gemm import dequantise
from .operands import Operand


@dataclass(frozen=True, slots=True)
class GatheredMGroupedGemmProblem:
    """D[row] = A[row_indices[row]] @ B[labels[row]].T; a negative index or label gives zeros.

    Attributes:
        a: [num_a_rows, k] bf16, K-major.
        b: [num_groups, n, k] bf16, any major.
        d: [m, n], unit stride along n; bf16 or fp32.
        labels: int32 [m], the group of every row of D, equal within each aligned block of rows but for padding.
        row_indices: int32 [m], the row of A for every row of D.
        alignment: rows of such a block.
    """

    a: Operand
    b: Operand
    d: Tensor
    labels: Tensor
    row_indices: Tensor
    alignment: int = 128


@dataclass(frozen=True, slots=True)
class GatheredKGroupedGemmProblem:
    """D[g] (+)= sum of A[:, ia(k)] B[:, ib(k)].T over k in [k_start[g], k_end[g]).

    The gathered operand is read at column ``k_indices[k]`` (negative: zeros), the other one at column k. An empty group
    gives zeros, or leaves D[g] unchanged when accumulating.

    Attributes:
        a, b: [m, ..] and [n, ..] bf16, MN-major.
        d: [num_groups, m, n], contiguous; bf16 or fp32.
        k_indices: int32 [num_k].
        k_start, k_end: int32 [num_groups].
        gathers: which operand is gathered.
        accumulates: add to what D holds.
    """

    a: Operand
    b: Operand
    d: Tensor
    k_indices: Tensor
    k_start: Tensor
    k_end: Tensor
    gathers: Literal["a", "b"]
    accumulates: bool


def gathered_m_grouped_gemm_reference(problem: GatheredMGroupedGemmProblem) -> None:
    """One float64 product per row of D, one rounding."""
    a = dequantise(problem.a)
    b = dequantise(problem.b)
    for row, (label, index) in enumerate(zip(problem.labels.tolist(), problem.row_indices.tolist(), strict=True)):
        problem.d[row] = b[label] @ a[index] if min(label, index) >= 0 else 0


def gathered_k_grouped_gemm_reference(problem: GatheredKGroupedGemmProblem) -> None:
    """float64 sums over each group's indices, one rounding."""
    a, b = dequantise(problem.a), dequantise(problem.b)
    for group, (start, stop) in enumerate(zip(problem.k_start.tolist(), problem.k_end.tolist(), strict=True)):
        result = torch.zeros(problem.d.shape[1:], dtype=torch.float64, device=problem.d.device)
        for k in range(start, stop):
            index = int(problem.k_indices[k])
            if index >= 0:
                left, right = (a[:, index], b[:, k]) if problem.gathers == "a" else (a[:, k], b[:, index])
                result += torch.outer(left, right)
        problem.d[group] = result + problem.d[group] if problem.accumulates else result


GATHERED_M_GROUPED_GEMM = Operation(
    name="gathered_m_grouped_gemm",
    problem=GatheredMGroupedGemmProblem,
    reference=gathered_m_grouped_gemm_reference,
    cases=gathered_m_cases,
    summary="D[row] = A[row_indices[row]] @ B[group of row].T (legacy)",
    functions=(
        "legacy.a_fused_m_grouped_bf16_gemm_nt_contiguous_tl",
        "legacy.a_fused_m_grouped_bf16_gemm_nn_contiguous_tl",
    ),
)

GATHERED_K_GROUPED_GEMM = Operation(
    name="gathered_k_grouped_gemm",
    problem=GatheredKGroupedGemmProblem,
    reference=gathered_k_grouped_gemm_reference,
    cases=gathered_k_cases,
    summary="D[g] (+)= A_g @ B_g.T with the K elements of one operand gathered through indices (legacy)",
    functions=(
        "legacy.a_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
        "legacy.b_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
    ),
)
