"""GEMMs whose groups split K (weight gradients): the problem, its definition and its cases.

Groups along M are in m_grouped.py; K gathered through indices is in gathered.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..epilogue import Epilogue
from .base import Operation, cases_in
from .epilogues import store
from .gemm import dequantise
from .operands import Operand


@dataclass(frozen=True, slots=True)
class KGroupLayout:
    """Which K elements belong to which group (contract 2.7).

    Attributes:
        kind: ``plain``: groups follow each other without gaps. ``psum``: group i ends at ``tensor[i]`` and starts at the
            end of group i-1 rounded up to `alignment`; it is empty if its end lies before its start.
        tensor: int32 [num_groups], sizes (plain) or ends (psum), on the device of the operands.
        alignment: of group starts in the psum layout; a multiple of 128. Plain sizes are multiples of 128 too.
        ks: sizes on the host: of the groups (plain), or of the groups rounded up to `alignment` (psum; None if the
            caller did not say).
    """

    kind: Literal["plain", "psum"]
    tensor: Tensor
    alignment: int = 128
    ks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class KGroupedGemmProblem:
    """D[g] = C[g] + alpha * sum over k in group g of A[:, k] B[:, k].T; an empty group gives C[g], or zeros.

    Whatever form the scales had in the call, here element (i, k) of an operand has scale (i, k // gran_k), k counted
    over all groups and gaps: ordinary scales of one [mn, sum_k] matrix. The caller zeroes data in gaps.

    Attributes:
        a, b: [m, sum_k] and [n, sum_k], any major; scales with gran_mn 1.
        d: [num_groups, m, n], contiguous; bf16 or fp32.
        layout: the groups.
        c: addend like d, contiguous; None for zero; may be `d` itself.
        alpha: factor of the product.
        epilogue: None stores the accumulator.
    """

    a: Operand
    b: Operand
    d: Tensor
    layout: KGroupLayout
    c: Tensor | None = None
    alpha: float = 1.0
    epilogue: Epilogue | None = None

    @property
    def num_groups(self) -> int:
        return self.d.shape[0]

    @property
    def m(self) -> int:
        return self.a.mn

    @property
    def n(self) -> int:
        return self.b.mn

    @property
    def k(self) -> int:
        return self.a.k


def k_grouped_gemm_reference(problem: KGroupedGemmProblem) -> None:
    """float64 sums over each group's columns, one rounding."""
    a, b, layout = dequantise(problem.a), dequantise(problem.b), problem.layout
    stop = 0
    for group, number in enumerate(layout.tensor.tolist()):
        if layout.kind == "plain":
            start, stop = stop, stop + number
        else:
            start = -(-stop // layout.alignment) * layout.alignment
            stop = max(start, number)
        result = problem.alpha * (a[:, start:stop] @ b[:, start:stop].T)
        if problem.c is not None:
            result = result + problem.c[group].double()
        store(result, problem.d[group], problem.epilogue)


K_GROUPED_GEMM = Operation(
    name="k_grouped_gemm",
    problem=KGroupedGemmProblem,
    reference=k_grouped_gemm_reference,
    cases=cases_in("k_grouped_cases"),
    summary="D[g] = C[g] + A_g @ B_g.T, groups split K (weight gradients)",
    functions=(
        "k_grouped_fp8_gemm_tn_contiguous",
        "k_grouped_fp8_gemm_nt_contiguous",
        "k_grouped_fp4_gemm_nt_contiguous",
        "k_grouped_bf16_gemm_tn_contiguous",
    ),
)
