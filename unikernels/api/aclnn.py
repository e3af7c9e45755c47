"""GEMMs of the Ascend vendor library (aclnn), which upstream keeps as baselines: the same products as in gemm.py.

The Ascend backend calls that library, or refuses where there is no NPU; other backends compute the same themselves.
Contract: DeepGEMM-Ascend, section "ACLNN reference GEMMs".
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import validate
from ..errors import InvalidArgumentError
from ..operations.operands import Operand
from .gemm import Pair, plain_gemm, run_dense

_GRAN_K = 32


def _quantised(
    function: str,
    a: object,
    b: object,
    d: Tensor,
    c: Tensor | None,
    recipe: object,
    recipe_a: object,
    recipe_b: object,
    disable_ue8m0_cast: object,
    transposes_a: bool,
    transposes_b: bool,
) -> None:
    take_a, take_b = (validate.transposed_pair if is_t else validate.pair for is_t in (transposes_a, transposes_b))
    (a_data, sfa), (b_data, sfb) = take_a(function, "a", a), take_b(function, "b", b)
    granularities = validate.recipes(function, recipe, recipe_a, recipe_b)
    if granularities not in (None, (1, _GRAN_K, 1, _GRAN_K)):
        raise InvalidArgumentError(
            f"{function}: the recipe is not (1, 1, {_GRAN_K}), the only one of the vendor library."
        )
    validate.refuse_ue8m0_cast(function, disable_ue8m0_cast, (sfa, sfb))
    for name, sf in (("sfa", sfa), ("sfb", sfb)):
        if sf.dtype in (torch.int16, torch.int32):
            raise InvalidArgumentError(
                f"{function}: {name} has dtype {sf.dtype}, expected float32, uint8 or float8_e8m0fnu, one scale per element: "
                f"the vendor library takes no packed words. fp8_fp4_gemm_{function[-2:]} does."
            )
    left = validate.matrix(function, "a", a_data, ndim=2, kinds=("fp8", "fp4"))
    right = validate.matrix(function, "b", b_data, ndim=2, kinds=("fp8", "fp4"))
    _check_pair(function, left, right, d)

    def scales(a: Operand, b: Operand) -> tuple[Operand, Operand]:
        return (
            validate.with_scales(function, "sfa", a, sfa, 1, _GRAN_K, recipe_form="fixed"),
            validate.with_scales(function, "sfb", b, sfb, 1, _GRAN_K, recipe_form="fixed"),
        )

    run_dense(
        function, left, right, d, c, scales=scales, uses_vendor_library=True, is_vendor_reference=True, sfa=sfa, sfb=sfb
    )


def _check_pair(function: str, a: Operand, b: Operand, d: object) -> None:
    """Refuse what the vendor library does not multiply."""
    if a.k % 64:
        raise InvalidArgumentError(f"{function}: k is {a.k}, expected a multiple of 64. Pad K with zeros.")
    pair = f"{a.kind} x {b.kind}"
    if pair == "fp4 x fp8":
        raise InvalidArgumentError(f"{function}: a is FP4 and b FP8, expected fp8 x fp8, fp8 x fp4 or fp4 x fp4.")
    if pair != "fp8 x fp4":
        return
    if not (a.is_k_major and b.is_k_major):
        raise InvalidArgumentError(f"{function}: a is FP8 and b FP4, which needs a unit stride along K for both.")
    if isinstance(d, Tensor) and d.dtype is not torch.bfloat16:
        raise InvalidArgumentError(f"{function}: a is FP8 and b FP4, which needs a bfloat16 d, got {d.dtype}.")


def _bf16(
    function: str, a: object, b: object, d: Tensor, c: Tensor | None, transposes_a: bool, transposes_b: bool
) -> None:
    if c is not None and c is not d:
        same = isinstance(c, Tensor) and isinstance(d, Tensor) and c.data_ptr() == d.data_ptr()
        if not same:
            raise InvalidArgumentError(
                f"{function}: c is another tensor than d; the vendor library writes the sum into c. Pass c=d to accumulate in "
                f"place, or use bf16_gemm_{function[-2:]}."
            )
    plain_gemm(function, a, b, d, c, transposes_a, transposes_b, uses_vendor_library=True, is_vendor_reference=True)


def aclnn_fp8_fp4_gemm_nt(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    disable_ue8m0_cast: bool = False,
) -> None:
    """Compute d = c + a @ b.T with FP8 or FP4 operands and one scale per 32 elements, by the vendor library's rules.

    Args:
        a, b: (data, scales) as in `fp8_fp4_gemm_nt`, k a multiple of 64; scales [mn, k/32] float32, uint8 or
            float8_e8m0fnu. Pairs: fp8 x fp8 and fp4 x fp4; fp8 x fp4 only K-major with a bfloat16 d.
        d: [m, n] bfloat16 or float32, unit stride along n; written in place.
        c: [m, n] of d's dtype, added; may be `d` itself.
        recipe, recipe_a, recipe_b: (1, 1, 32), the only one.
        disable_ue8m0_cast: as in `fp8_fp4_gemm_nt`.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Contract: DeepGEMM-Ascend, `aclnn_fp8_fp4_gemm_nt`.
    """
    _quantised("aclnn_fp8_fp4_gemm_nt", a, b, d, c, recipe, recipe_a, recipe_b, disable_ue8m0_cast, False, False)


def aclnn_fp8_fp4_gemm_nn(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    disable_ue8m0_cast: bool = False,
) -> None:
    """Compute d = c + a @ b, with b and its scales passed K first; see `aclnn_fp8_fp4_gemm_nt`."""
    _quantised("aclnn_fp8_fp4_gemm_nn", a, b, d, c, recipe, recipe_a, recipe_b, disable_ue8m0_cast, False, True)


def aclnn_fp8_fp4_gemm_tn(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    disable_ue8m0_cast: bool = False,
) -> None:
    """Compute d = c + a.T @ b, with both and their scales passed K first; see `aclnn_fp8_fp4_gemm_nt`."""
    _quantised("aclnn_fp8_fp4_gemm_tn", a, b, d, c, recipe, recipe_a, recipe_b, disable_ue8m0_cast, True, True)


def aclnn_fp8_fp4_gemm_tt(
    a: Pair,
    b: Pair,
    d: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    disable_ue8m0_cast: bool = False,
) -> None:
    """Compute d = c + a.T @ b.T, with a and its scales passed K first; see `aclnn_fp8_fp4_gemm_nt`."""
    _quantised("aclnn_fp8_fp4_gemm_tt", a, b, d, c, recipe, recipe_a, recipe_b, disable_ue8m0_cast, True, False)


def aclnn_bf16_gemm_nt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a @ b.T for bfloat16 operands; c, if given, is d itself.

    Shapes and errors as in `bf16_gemm_nt`. Contract: DeepGEMM-Ascend, `aclnn_bf16_gemm_nt`.
    """
    _bf16("aclnn_bf16_gemm_nt", a, b, d, c, False, False)


def aclnn_bf16_gemm_nn(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a @ b, with b passed K first; see `aclnn_bf16_gemm_nt`."""
    _bf16("aclnn_bf16_gemm_nn", a, b, d, c, False, True)


def aclnn_bf16_gemm_tn(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a.T @ b, with both passed K first; see `aclnn_bf16_gemm_nt`."""
    _bf16("aclnn_bf16_gemm_tn", a, b, d, c, True, True)


def aclnn_bf16_gemm_tt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a.T @ b.T, with a passed K first; see `aclnn_bf16_gemm_nt`."""
    _bf16("aclnn_bf16_gemm_tt", a, b, d, c, True, False)
