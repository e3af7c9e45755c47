"""Hyper-connection pre-norm GEMM: the problem and its definition. Cases are in hc_prenorm_cases.py.

The whole hyper-connection step (mixes, Sinkhorn, RMSNorm) is mega_mhc.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Operation, cases_in

#: Mantissa bits that TF32 drops from float32.
_DROPPED_BITS = 13


def round_to_tf32(x: Tensor) -> Tensor:
    """Return float32 values rounded to TF32's 10-bit mantissa, to nearest, ties to even; NaN and inf unchanged."""
    bits = x.contiguous().view(torch.int32)
    rounded = bits >> _DROPPED_BITS
    rounded &= 1
    rounded += bits
    rounded += (1 << (_DROPPED_BITS - 1)) - 1
    rounded &= -(1 << _DROPPED_BITS)
    # Infinity has no mantissa bits to carry; a NaN may.
    return torch.where(x.isnan(), x, rounded.view(torch.float32))


@dataclass(frozen=True, slots=True)
class HcPrenormProblem:
    """Sum over splits of D = A @ tf32(B).T, and of the row sums of squares of A.

    How K is shared out among splits is the backend's choice; every split is written in full.

    Attributes:
        a: [m, k] bf16, unit stride along k.
        b: [n, k] fp32, unit stride along k; rounded to TF32.
        d: [num_splits, m, n] fp32, unit stride along n.
        sqr_sum: [num_splits, m] fp32, contiguous.
    """

    a: Tensor
    b: Tensor
    d: Tensor
    sqr_sum: Tensor

    @property
    def m(self) -> int:
        return self.a.shape[0]

    @property
    def n(self) -> int:
        return self.b.shape[0]

    @property
    def k(self) -> int:
        return self.a.shape[1]

    @property
    def num_splits(self) -> int:
        return self.d.shape[0]


def hc_prenorm_reference(problem: HcPrenormProblem) -> None:
    """float64 sums; contiguous shares of K, the last ones possibly empty."""
    a, b = problem.a.double(), round_to_tf32(problem.b).double()
    share = -(-problem.k // problem.num_splits)
    for split in range(problem.num_splits):
        part = slice(split * share, (split + 1) * share)
        problem.d[split] = a[:, part] @ b[:, part].T
        problem.sqr_sum[split] = a[:, part].square().sum(-1)


HC_PRENORM = Operation(
    name="hc_prenorm_gemm",
    problem=HcPrenormProblem,
    reference=hc_prenorm_reference,
    cases=cases_in("hc_prenorm_cases"),
    summary="D = A @ B.T in TF32 with the row sums of squares of A, split along K",
    functions=("tf32_hc_prenorm_gemm",),
)
