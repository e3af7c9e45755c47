"""Batches of GEMMs with free strides (einsum forms, syrk, symm): the problem, its definition and its cases."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..epilogue import Epilogue
from .base import Operation, cases_in
from .epilogues import store
from .gemm import dequantise
from .operands import Operand


@dataclass(frozen=True, slots=True)
class BatchedGemmProblem:
    """D[i] = C[i] + alpha * A[i] @ B[i].T, or the sum of all products in one D.

    Attributes:
        a, b: [batch, m, k] and [batch, n, k], any major; batch strides are free, also smaller than a matrix.
        d: [batch, m, n] (or [m, n] if `sums_batch`), unit stride along n, other strides free; bf16, fp32, or e4m3 under an
            FP8 epilogue, whose scale tensor has a row per row of D and the columns of all batch entries side by side:
            32-column block j of entry i is block ``i * n / 32 + j``.
        c: addend of d's shape, dtype and order; None for zero; may be `d` itself.
        alpha: factor of the product.
        epilogue: None stores the accumulator.
        sums_batch: sum the products over the batch.
        uses_vendor_library: the caller asks for the vendor's BLAS; a hint that never changes the result.
    """

    a: Operand
    b: Operand
    d: Tensor
    c: Tensor | None = None
    alpha: float = 1.0
    epilogue: Epilogue | None = None
    sums_batch: bool = False
    uses_vendor_library: bool = False

    @property
    def batch(self) -> int:
        return self.a.data.shape[0]

    @property
    def m(self) -> int:
        return self.a.mn

    @property
    def n(self) -> int:
        return self.b.mn

    @property
    def k(self) -> int:
        return self.a.k


def batched_gemm_reference(problem: BatchedGemmProblem) -> None:
    """float64 products, one rounding."""
    a, b = dequantise(problem.a), dequantise(problem.b)
    products = problem.alpha * (a @ b.mT)
    if problem.sums_batch:
        products = products.sum(0)
    if problem.c is not None:
        products = products + problem.c.double()
    if problem.sums_batch:
        store(products, problem.d, problem.epilogue)
        return
    for index in range(problem.batch):
        store(products[index], problem.d[index], problem.epilogue, first_column_block=index * problem.n // 32)


BATCHED_GEMM = Operation(
    name="batched_gemm",
    problem=BatchedGemmProblem,
    reference=batched_gemm_reference,
    cases=cases_in("batched_cases"),
    summary="D[i] = C[i] + alpha * A[i] @ B[i].T with free strides, or summed over the batch (einsum, syrk, symm)",
    functions=("einsum", "fp8_einsum", "batched_syrk", "batched_symm"),
)
