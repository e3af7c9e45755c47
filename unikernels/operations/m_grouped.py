"""GEMMs that share A's rows out among groups: index, prefix-sum and masked layouts in one operation.

The problem, its definition and its cases. Groups along K are in k_grouped.py, gathered rows in gathered.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..epilogue import Epilogue
from .base import Operation, cases_in
from .epilogues import store
from .gemm import dequantise
from .operands import Operand

LayoutKind = Literal["index", "psum", "masked"]


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Which rows belong to which group (contract 2.7).

    Attributes:
        kind: what `tensor` holds. ``index``: int32 [m], the group of every row, negative for padding. ``psum``: int32
            [num_groups], end of every group; group i starts at the end of group i-1 rounded up to `alignment`, and is
            empty if its end lies before its start. ``masked``: int32 [num_groups], valid rows at the front of each slab.
        tensor: on the device of the operands; may change between replays of a captured graph, so device kernels must
            not read it on the host.
        alignment: of group starts, in rows.
        expected_m: tuning hint, rows per group; None if unknown.
        ensure_zero_padding: psum only: rows from a group's end to its aligned end become zero, whatever A holds there.
    """

    kind: LayoutKind
    tensor: Tensor
    alignment: int = 128
    expected_m: int | None = None
    ensure_zero_padding: bool = True


@dataclass(frozen=True, slots=True)
class GroupedGemmProblem:
    """D[row] = alpha * A[row] @ B[group of row].T for every row of a group.

    Rows of A and of its scales that belong to no group may hold anything, NaN included, and must not matter. Rows of D:
    index layout, negative label: unspecified. psum: see `GroupLayout.ensure_zero_padding` (unspecified without it);
    rows past the last aligned end keep their content. masked: rows past the mask are unspecified.

    Attributes:
        a: [m, k], or [num_groups, max_m, k] for the masked layout; K-major, one scale per row (gran_mn 1).
        b: [num_groups, n, k], any major.
        d: [m, n] or [num_groups, max_m, n], unit stride along n; bf16 or fp32.
        layout: the groups.
        alpha: factor of the product.
        epilogue: None stores the accumulator.
    """

    a: Operand
    b: Operand
    d: Tensor
    layout: GroupLayout
    alpha: float = 1.0
    epilogue: Epilogue | None = None

    @property
    def num_groups(self) -> int:
        return self.b.data.shape[0]

    @property
    def n(self) -> int:
        return self.b.mn

    @property
    def k(self) -> int:
        return self.a.k


def first_misplaced_row(labels: Tensor, alignment: int) -> int | None:
    """Return the first row whose group is not the one its aligned block of rows starts with; None if there is none.

    Kernels that read one label per tile compute such a row with another group's B. Negative labels (padding) are fine
    anywhere but in front of a group's rows.
    """
    first = labels[torch.arange(0, labels.shape[0], alignment, device=labels.device)]
    expected = first.repeat_interleave(alignment)[: labels.shape[0]]
    misplaced = ((labels != expected) & (labels >= 0)).nonzero()
    return int(misplaced[0]) if misplaced.numel() else None


def m_grouped_gemm_reference(problem: GroupedGemmProblem) -> None:
    """float64 products of the rows of each group, one rounding."""
    layout, a = problem.layout, dequantise(problem.a)
    if layout.kind == "masked":
        for group, count in enumerate(layout.tensor.tolist()):
            rows = torch.arange(count, device=problem.d.device)
            _write_rows(problem, a[group], group, problem.d[group], rows)
        return
    labels = layout.tensor
    if layout.kind == "psum":
        labels = psum_labels(layout.tensor.tolist(), layout.alignment, problem.a.mn, layout.ensure_zero_padding)
        labels = labels.to(problem.d.device)
    for group in range(problem.num_groups):
        _write_rows(problem, a, group, problem.d, (labels == group).nonzero().flatten())
    problem.d[(labels == PADDING).nonzero().flatten()] = 0


#: Labels of rows in no group: zero on output, or left alone.
PADDING, UNTOUCHED = -1, -2


def psum_labels(ends: list[int], alignment: int, num_rows: int, pads: bool) -> Tensor:
    """Return the group of every row of a psum layout, PADDING up to aligned ends (if `pads`), UNTOUCHED elsewhere."""
    labels = torch.full((num_rows,), UNTOUCHED)
    start = 0
    for group, end in enumerate(ends):
        end = max(start, end)
        aligned_end = -(-end // alignment) * alignment
        labels[start:end] = group
        labels[end:aligned_end] = PADDING if pads else UNTOUCHED
        start = aligned_end
    return labels


def _write_rows(problem: GroupedGemmProblem, a: Tensor, group: int, d: Tensor, rows: Tensor) -> None:
    product = problem.alpha * (a[rows] @ dequantise(problem.b.group(group)).T)
    stored = torch.empty(product.shape, dtype=d.dtype, device=d.device)
    store(product, stored, problem.epilogue)
    d[rows] = stored


M_GROUPED_GEMM = Operation(
    name="m_grouped_gemm",
    problem=GroupedGemmProblem,
    reference=m_grouped_gemm_reference,
    cases=cases_in("m_grouped_cases"),
    summary="D[row] = A[row] @ B[group of row].T, rows grouped by labels, aligned prefix sums or masks",
    functions=(
        "m_grouped_fp8_fp4_gemm_nt_contiguous",
        "m_grouped_fp8_fp4_gemm_nn_contiguous",
        "m_grouped_bf16_gemm_nt_contiguous",
        "m_grouped_bf16_gemm_nn_contiguous",
        "m_grouped_fp8_fp4_gemm_nt_masked",
        "m_grouped_bf16_gemm_nt_masked",
    ),
)
