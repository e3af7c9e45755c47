"""Dense GEMM: the problem, its definition and its cases. All of nt/nn/tn/tt and every alias meet here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..epilogue import Epilogue
from ..scale_layouts import decode_scales
from .base import Operation, cases_in
from .epilogues import store
from .operands import Operand


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """D = C + alpha * A @ B.T.

    Attributes:
        a, b: operands [m, k] and [n, k].
        d: output [m, n], unit stride along n; bf16, fp32, or e4m3 under an FP8 epilogue.
        c: addend [m, n] of d's dtype; None for zero; may be `d` itself (accumulate in place).
        alpha: factor of the product.
        epilogue: None stores the accumulator.
        head_splits: (left, middle, right) of `fp8_gemm_nt_skip_head_mid`: column h*(left+right)+j of the product goes to
            column h*(left+middle+right)+j (plus middle if j >= left) of d, whose middle columns keep their content.
        uses_vendor_library: the caller asks for the vendor's BLAS (cublaslt, aclnn); a hint that never changes the result.
        is_vendor_reference: the caller compares against that library (aclnn): a backend of that vendor uses it or refuses.
    """

    a: Operand
    b: Operand
    d: Tensor
    c: Tensor | None = None
    alpha: float = 1.0
    epilogue: Epilogue | None = None
    head_splits: tuple[int, int, int] | None = None
    uses_vendor_library: bool = False
    is_vendor_reference: bool = False

    @property
    def m(self) -> int:
        return self.a.mn

    @property
    def n(self) -> int:
        return self.b.mn

    @property
    def k(self) -> int:
        return self.a.k


#: Values of the sixteen E2M1 codes; 0x8 decodes to +0.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def decode_payload(operand: Operand) -> Tensor:
    """Return the unscaled values of an operand in float32, [.., mn, k]."""
    if operand.kind != "fp4":
        return operand.data.float()
    table = torch.tensor(E2M1_VALUES, device=operand.data.device)
    codes = operand.data.view(torch.uint8).long()
    low, high = table[codes & 0xF], table[codes >> 4]
    if operand.is_k_major:
        return torch.stack([low, high], dim=-1).flatten(-2)
    return torch.stack([low, high], dim=-2).flatten(-3, -2)


def dequantise(operand: Operand, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the values of an operand, scales applied, [.., mn, k]."""
    values = decode_payload(operand).to(dtype)
    scales = operand.scales
    if scales is None:
        return values
    factors = decode_scales(scales).to(dtype)
    rows = torch.arange(operand.mn, device=values.device) // scales.gran_mn
    columns = torch.arange(operand.k, device=values.device) // scales.gran_k
    return values * factors[..., rows, :][..., columns]


def gemm_reference(problem: GemmProblem) -> None:
    """float64 product, one rounding."""
    product = dequantise(problem.a) @ dequantise(problem.b).T
    result = problem.alpha * product
    if problem.c is not None:
        result = result + problem.c.double()
    if problem.head_splits is None:
        store(result, problem.d, problem.epilogue)
    else:
        left, middle, right = problem.head_splits
        heads = problem.d.unflatten(1, (-1, left + middle + right))
        parts = result.unflatten(1, (-1, left + right))
        heads[..., :left] = parts[..., :left]
        heads[..., left + middle :] = parts[..., left:]


GEMM = Operation(
    name="gemm",
    problem=GemmProblem,
    reference=gemm_reference,
    cases=cases_in("gemm_cases"),
    summary="D = C + alpha * A @ B.T with bf16, fp8 or fp4 operands and block scales",
)
