"""Dense GEMM functions. nn, tn and tt are transposed views onto nt; aliases name the same objects.

Being the same objects, as in DeepGEMM, aliases share their errors: a message names the function, not the alias.

Contract: DeepGEMM 2.8.2 (`fp8_gemm_nt_skip_head_mid`: 2.6.1); differences are listed in docs/compatibility.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import validate
from .._registry import bound
from ..epilogue import Epilogue
from ..errors import InvalidArgumentError
from ..operations.gemm import GemmProblem
from ..operations.operands import Operand

#: A quantised operand as it is passed: (data, scales).
Pair = tuple[Tensor, Tensor]


def run_dense(
    function: str,
    a: Operand,
    b: Operand,
    d: Any,
    c: Any,
    alpha: float = 1.0,
    epilogue: Epilogue | None = None,
    scales: Any = None,
    uses_vendor_library: bool = False,
    is_vendor_reference: bool = False,
    **scale_tensors: Tensor,
) -> None:
    """Check everything but the scales, treat empty problems, attach scales, call the backend.

    Args:
        scales: function that returns both operands with their scales attached; called for non-empty problems only
            (contract 1.8: empty problems end before any look at the scales).
        uses_vendor_library, is_vendor_reference: see `GemmProblem`.
        scale_tensors: sfa and sfb, for the checks of devices and overlap.
    """
    validate.require_equal_k(function, a, b)
    m, n = a.mn, b.mn
    d = validate.output(function, "d", d, (m, n), validate.output_dtypes(epilogue), "(m, n)")
    c = validate.addend(function, c, d)
    validate.require_same_device(function, d, a=a.data, b=b.data, **scale_tensors)
    if epilogue is not None:
        validate.epilogue_outputs(function, epilogue, c, m, n, d, a=a.data, b=b.data, **scale_tensors)
    if m == 0 or n == 0:
        return
    validate.refuse_overlap(function, "d", d, a=a.data, b=b.data, **scale_tensors)
    if a.k == 0:
        write_empty_product(d, c, epilogue)
        return
    if scales is not None:
        a, b = scales(a, b)
    bound("gemm", d)(GemmProblem(a, b, d, c, alpha, epilogue, None, uses_vendor_library, is_vendor_reference))


@torch.no_grad()
def write_empty_product(d: Tensor, c: Tensor | None, epilogue: Epilogue | None) -> None:
    """K = 0: d = c, or zeros; an FP8 output zeroes its scales too (contract 1.8)."""
    if c is None:
        d.zero_()
        sfd = getattr(epilogue, "sfd", None)
        if sfd is not None:
            sfd.zero_()
        count = getattr(epilogue, "clamped_count", None)
        if count is not None:
            count.zero_()
    elif c is not d:
        d.copy_(c)


def _quantised(
    function: str,
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None,
    recipe: object,
    recipe_a: object,
    recipe_b: object,
    compiled_dims: str,
    disable_ue8m0_cast: bool,
    alpha: float | None,
    epilogue: Epilogue | None,
    epilogue_class: Epilogue | None,
) -> None:
    (a_data, sfa), (b_data, sfb) = a, b
    factor, store = validate.epilogue_and_alpha(function, alpha, epilogue, epilogue_class)
    validate.compiled_dims(function, compiled_dims)
    validate.refuse_ue8m0_cast(function, disable_ue8m0_cast, (sfa, sfb))
    granularities = validate.recipes(function, recipe, recipe_a, recipe_b)

    def scales(a: Operand, b: Operand) -> tuple[Operand, Operand]:
        gran_m, gran_k_a, gran_n, gran_k_b = granularities or validate.default_recipe(sfb)
        return (
            validate.with_scales(function, "sfa", a, sfa, gran_m, gran_k_a),
            validate.with_scales(function, "sfb", b, sfb, gran_n, gran_k_b),
        )

    left = validate.matrix(function, "a", a_data, ndim=2, kinds=("fp8", "fp4"))
    right = validate.matrix(function, "b", b_data, ndim=2, kinds=("fp8", "fp4"))
    run_dense(function, left, right, d, c, factor, store, scales, sfa=sfa, sfb=sfb)


def fp8_fp4_gemm_nt(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + alpha * a @ b.T with block-scaled FP8 or FP4 operands.

    Args:
        a: (data, scales). data [m, k] float8_e4m3fn, or FP4: two E2M1 codes a byte, low nibble first, packed along the
            contiguous axis ([m, k/2], or [m/2, k] with unit stride along m), as int8, uint8 or float4_e2m1fn_x2.
            scales [ceil(m/gran_m), ceil(k/gran_k)] float32, or packed UE8M0: int32 [m, ceil(k/(4*gran_k))], int16
            [m, ceil(k/64)].
        b: (data, scales) in the same way with n for m: data [n, k].
        d: [m, n] bfloat16 or float32, unit stride along n; written in place.
        c: [m, n] of d's dtype, added; may be `d` itself; None adds nothing.
        recipe: (gran_m, gran_n, gran_k), how many elements one scale covers. Default by the dtype of b's scales: float32
            (1, 128, 128), int32 (1, 1, 128), int16 (1, 1, 32).
        recipe_a, recipe_b: (gran_m, gran_k) and (gran_n, gran_k) instead of `recipe`, when they differ along K.
        compiled_dims: tuning hint, letters out of "mnk".
        disable_ue8m0_cast: refuse float32 scales on backends that multiply by powers of two only.
        alpha: factor of the product, not of c; infinity and NaN are accepted, as in DeepGEMM.
        epilogue: an object of `unikernels.epilogue`; not together with alpha. `epilogue_class` is another name for it.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.
        UnsupportedOperationError: the backend has no kernel for this combination.

    Example:
        >>> import torch, unikernels as uk
        >>> a = uk.per_token_cast_to_fp8(torch.ones(4, 128), use_ue8m0=True)
        >>> b = uk.per_block_cast_to_fp8(torch.ones(256, 128), use_ue8m0=True)
        >>> d = torch.empty(4, 256)
        >>> uk.fp8_fp4_gemm_nt(a, b, d)
        >>> d[0, 0].item()
        128.0

    Contract: DeepGEMM 2.8.2, `fp8_fp4_gemm_nt` (aliases `fp8_gemm_nt`, `fp4_gemm_nt`).
    """
    function = "fp8_fp4_gemm_nt"
    a, b = validate.pair(function, "a", a), validate.pair(function, "b", b)
    _quantised(
        function, a, b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, alpha, epilogue,
        epilogue_class,
    )  # fmt: skip


def fp8_fp4_gemm_nn(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + alpha * a @ b, with b passed as [k, n] and its scales as [ceil(k/gran_k), ceil(n/gran_n)].

    Everything else as in `fp8_fp4_gemm_nt`. Contract: DeepGEMM 2.8.2, `fp8_fp4_gemm_nn`.
    """
    function = "fp8_fp4_gemm_nn"
    a, b = validate.pair(function, "a", a), validate.transposed_pair(function, "b", b)
    _quantised(
        function, a, b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, alpha, epilogue,
        epilogue_class,
    )  # fmt: skip


def fp8_fp4_gemm_tn(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + alpha * a.T @ b, with a [k, m], b [k, n] and K-first scales for both.

    Everything else as in `fp8_fp4_gemm_nt`. Contract: DeepGEMM 2.8.2, `fp8_fp4_gemm_tn`.
    """
    function = "fp8_fp4_gemm_tn"
    a, b = validate.transposed_pair(function, "a", a), validate.transposed_pair(function, "b", b)
    _quantised(
        function, a, b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, alpha, epilogue,
        epilogue_class,
    )  # fmt: skip


def fp8_fp4_gemm_tt(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + alpha * a.T @ b.T, with a [k, m] and K-first scales for it, b [n, k].

    Everything else as in `fp8_fp4_gemm_nt`. Contract: DeepGEMM 2.8.2, `fp8_fp4_gemm_tt`.
    """
    function = "fp8_fp4_gemm_tt"
    a, b = validate.transposed_pair(function, "a", a), validate.pair(function, "b", b)
    _quantised(
        function, a, b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, alpha, epilogue,
        epilogue_class,
    )  # fmt: skip


fp8_gemm_nt = fp4_gemm_nt = fp8_fp4_gemm_nt
fp8_gemm_nn = fp8_fp4_gemm_nn
fp8_gemm_tn = fp8_fp4_gemm_tn
fp8_gemm_tt = fp8_fp4_gemm_tt


def plain_gemm(
    function: str,
    a: object,
    b: object,
    d: Tensor,
    c: Tensor | None,
    transposes_a: bool,
    transposes_b: bool,
    kinds: tuple[Any, ...] = ("bf16",),
    alpha: float = 1.0,
    epilogue: Epilogue | None = None,
    uses_vendor_library: bool = False,
    is_vendor_reference: bool = False,
) -> None:
    """Compute d = c + alpha * A @ B.T for operands without scales, either passed transposed; the checks of all of them."""
    operands = []
    for name, value, is_transposed in (("a", a, transposes_a), ("b", b, transposes_b)):
        data = validate.require_tensor(function, name, value)
        if is_transposed and data.ndim >= 2:
            data = data.transpose(-1, -2)
        operands.append(validate.matrix(function, name, data, ndim=2, kinds=kinds))
    left, right = operands
    if left.kind != right.kind:
        raise InvalidArgumentError(
            f"{function}: a has dtype {left.data.dtype} and b {right.data.dtype}, expected the same dtype for both."
        )
    run_dense(function, left, right, d, c, alpha, epilogue, None, uses_vendor_library, is_vendor_reference)


def bf16_gemm_nt(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "nk",
    alpha: float | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + alpha * a @ b.T for bfloat16 operands, accumulating in float32.

    Args:
        a: [m, k] bfloat16, unit stride in one dimension.
        b: [n, k] bfloat16, unit stride in one dimension.
        d: [m, n] bfloat16 or float32, unit stride along n; written in place.
        c: [m, n] of d's dtype, added; may be `d` itself.
        compiled_dims, alpha, epilogue: as in `fp8_fp4_gemm_nt`.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Contract: DeepGEMM 2.8.2, `bf16_gemm_nt`.
    """
    validate.compiled_dims("bf16_gemm_nt", compiled_dims)
    factor, store = validate.epilogue_and_alpha("bf16_gemm_nt", alpha, epilogue, epilogue_class)
    plain_gemm("bf16_gemm_nt", a, b, d, c, False, False, alpha=factor, epilogue=store)


def bf16_gemm_nn(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "nk",
    alpha: float | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + alpha * a @ b, with b [k, n]; see `bf16_gemm_nt`. Contract: DeepGEMM 2.8.2, `bf16_gemm_nn`."""
    validate.compiled_dims("bf16_gemm_nn", compiled_dims)
    factor, store = validate.epilogue_and_alpha("bf16_gemm_nn", alpha, epilogue, epilogue_class)
    plain_gemm("bf16_gemm_nn", a, b, d, c, False, True, alpha=factor, epilogue=store)


def bf16_gemm_tn(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "mn",
    alpha: float | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + alpha * a.T @ b, with a [k, m], b [k, n]; see `bf16_gemm_nt`. Contract: `bf16_gemm_tn`."""
    validate.compiled_dims("bf16_gemm_tn", compiled_dims)
    factor, store = validate.epilogue_and_alpha("bf16_gemm_tn", alpha, epilogue, epilogue_class)
    plain_gemm("bf16_gemm_tn", a, b, d, c, True, True, alpha=factor, epilogue=store)


def bf16_gemm_tt(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "mn",
    alpha: float | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + alpha * a.T @ b.T, with a [k, m], b [n, k]; see `bf16_gemm_nt`. Contract: `bf16_gemm_tt`."""
    validate.compiled_dims("bf16_gemm_tt", compiled_dims)
    factor, store = validate.epilogue_and_alpha("bf16_gemm_tt", alpha, epilogue, epilogue_class)
    plain_gemm("bf16_gemm_tt", a, b, d, c, True, False, alpha=factor, epilogue=store)


_BLAS_KINDS = ("bf16", "fp8")


def cublaslt_gemm_nt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a @ b.T, the plain BLAS baseline: bfloat16, or FP8 values taken at face value (scale 1).

    Shapes, errors and empty problems as in `bf16_gemm_nt`. Contract: DeepGEMM 2.8.2, `cublaslt_gemm_nt`.
    """
    plain_gemm("cublaslt_gemm_nt", a, b, d, c, False, False, _BLAS_KINDS, uses_vendor_library=True)


def cublaslt_gemm_nn(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a @ b; see `cublaslt_gemm_nt`."""
    plain_gemm("cublaslt_gemm_nn", a, b, d, c, False, True, _BLAS_KINDS, uses_vendor_library=True)


def cublaslt_gemm_tn(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a.T @ b; see `cublaslt_gemm_nt`."""
    plain_gemm("cublaslt_gemm_tn", a, b, d, c, True, True, _BLAS_KINDS, uses_vendor_library=True)


def cublaslt_gemm_tt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a.T @ b.T; see `cublaslt_gemm_nt`."""
    plain_gemm("cublaslt_gemm_tt", a, b, d, c, True, False, _BLAS_KINDS, uses_vendor_library=True)
