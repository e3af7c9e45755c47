"""GEMMs grouped along M: contiguous (row labels or end offsets) and masked. Groups along K are in k_grouped.py.

Contract: DeepGEMM 2.8.2, section "M-grouped GEMM"; differences are listed in docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .. import _registry, validate, validate_groups
from .._registry import bound
from ..epilogue import Epilogue, FP8CastWithClamp
from ..errors import InvalidArgumentError
from ..operations.m_grouped import GroupedGemmProblem, GroupLayout
from ..operations.operands import Operand
from .gemm import Pair

_QUANTISED = ("fp8", "fp4")


def _run(
    function: str,
    a: Operand,
    b: Operand,
    d: object,
    read_layout: Callable[[Tensor], GroupLayout],
    epilogue: object,
    epilogue_class: object,
    recipes: tuple[object, object, object] = (None, None, None),
    **scale_tensors: Tensor,
) -> None:
    """Check shapes, treat empty problems, attach scales, call the backend."""
    factor, store = validate.epilogue_and_alpha(function, None, epilogue, epilogue_class)
    if isinstance(store, FP8CastWithClamp):
        raise InvalidArgumentError(
            f"{function}: epilogue {type(store).__name__} is not offered by grouped GEMMs, expected a bfloat16 or float32 d. "
            f"Quantise d afterwards with per_token_cast_to_fp8."
        )
    validate.require_equal_k(function, a, b)
    num_groups = b.data.shape[0]
    if not a.is_k_major:
        raise InvalidArgumentError(
            f"{function}: a has strides {a.data.stride()}, expected a unit stride along K: grouped GEMMs take a K-major a. "
            f"Pass a contiguous copy."
        )
    is_masked = a.data.ndim == 3
    if is_masked and a.data.shape[0] != num_groups:
        raise InvalidArgumentError(
            f"{function}: a has {a.data.shape[0]} groups and b {num_groups}, expected the same leading size."
        )
    shape = (num_groups, a.mn, b.mn) if is_masked else (a.mn, b.mn)
    why = "(num_groups, max_m, n)" if is_masked else "(m, n)"
    d = validate.output(function, "d", d, shape, validate.output_dtypes(store), why)
    if min(num_groups, b.mn, a.k) == 0:
        raise InvalidArgumentError(
            f"{function}: b has {num_groups} groups, n={b.mn} and k={a.k}, expected all of them positive; only the number "
            f"of rows may be zero."
        )
    validate.require_same_device(function, d, a=a.data, b=b.data, **scale_tensors)
    layout = read_layout(d)
    granularities = validate.recipes(function, *recipes)
    if a.mn == 0:
        return
    validate.refuse_overlap(function, "d", d, a=a.data, b=b.data, grouped_layout=layout.tensor, **scale_tensors)
    if scale_tensors:
        sfa, sfb = scale_tensors["sfa"], scale_tensors["sfb"]
        gran_m, gran_k_a, gran_n, gran_k_b = granularities or validate.default_recipe(sfb)
        a = validate.with_scales(function, "sfa", a, sfa, gran_m, gran_k_a, num_groups if is_masked else None)
        a = _per_row(a, layout)
        b = validate.with_scales(function, "sfb", b, sfb, gran_n, gran_k_b, num_groups)
    bound("m_grouped_gemm", d)(GroupedGemmProblem(a, b, d, layout, factor, store))


def _per_row(a: Operand, layout: GroupLayout) -> Operand:
    """Give every row its own scale, so that groups can be cut out at any row."""
    scales = a.scales
    if scales is None or scales.gran_mn == 1:
        return a
    scales = _registry.backend_of(scales.data).scales_per_row(scales, layout)
    return Operand(a.data, a.kind, a.mn, a.k, a.is_k_major, scales)


def contiguous_gemm(
    function: str,
    a: object,
    b: object,
    d: object,
    grouped_layout: object,
    psum: tuple[object, object, object],
    epilogue: object,
    epilogue_class: object,
    compiled_dims: object,
    transposes_b: bool,
    recipes: tuple[object, object, object] | None = None,
    disable_ue8m0_cast: object = False,
) -> None:
    """Shared body of the four contiguous functions; without `recipes` the operands are bfloat16."""
    validate.compiled_dims(function, compiled_dims)
    scales: dict[str, Tensor] = {}
    kinds: tuple[Any, ...] = ("bf16",)
    if recipes is None:
        a_data, b_data = validate.require_tensor(function, "a", a), validate.require_tensor(function, "b", b)
        if transposes_b and b_data.ndim >= 2:
            b_data = b_data.transpose(-1, -2)
    else:
        kinds = _QUANTISED
        a_data, scales["sfa"] = validate.pair(function, "a", a)
        take = validate.transposed_pair if transposes_b else validate.pair
        b_data, scales["sfb"] = take(function, "b", b)
        validate.refuse_ue8m0_cast(function, disable_ue8m0_cast, tuple(scales.values()))
    left = validate.matrix(function, "a", a_data, ndim=2, kinds=kinds)
    right = validate.matrix(function, "b", b_data, ndim=3, kinds=kinds)
    num_groups = right.data.shape[0]

    def read_layout(d: Tensor) -> GroupLayout:
        return validate_groups.contiguous_layout(function, grouped_layout, d, num_groups, *psum)

    _run(function, left, right, d, read_layout, epilogue, epilogue_class, recipes or (None, None, None), **scales)


def _masked(
    function: str,
    a: object,
    b: object,
    d: object,
    masked_m: object,
    expected_m: object,
    epilogue: object,
    epilogue_class: object,
    compiled_dims: object,
    recipes: tuple[object, object, object] | None = None,
    disable_ue8m0_cast: object = False,
) -> None:
    """Shared body of the two masked functions; without `recipes` the operands are bfloat16."""
    validate.compiled_dims(function, compiled_dims)
    scales: dict[str, Tensor] = {}
    kinds: tuple[Any, ...] = ("bf16",)
    if recipes is None:
        a_data, b_data = validate.require_tensor(function, "a", a), validate.require_tensor(function, "b", b)
    else:
        kinds = _QUANTISED
        a_data, scales["sfa"] = validate.pair(function, "a", a)
        b_data, scales["sfb"] = validate.pair(function, "b", b)
        validate.refuse_ue8m0_cast(function, disable_ue8m0_cast, tuple(scales.values()))
    left = validate.matrix(function, "a", a_data, ndim=3, kinds=kinds)
    right = validate.matrix(function, "b", b_data, ndim=3, kinds=kinds)

    def read_layout(d: Tensor) -> GroupLayout:
        return validate_groups.masked_layout(function, masked_m, expected_m, d)

    _run(function, left, right, d, read_layout, epilogue, epilogue_class, recipes or (None, None, None), **scales)


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Tensor,
    grouped_layout: Tensor,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[row] = a[row] @ b[g].T for every row of every group g, with block-scaled FP8 or FP4 operands.

    Args:
        a: (data, scales). data [m, k], unit stride along k; scales [m, ceil(k/gran_k)] (formats as in `fp8_fp4_gemm_nt`).
            Rows of no group may hold anything, in data and scales.
        b: (data, scales). data [num_groups, n, k], scales [num_groups, ceil(n/gran_n), ceil(k/gran_k)].
        d: [m, n] bfloat16 or float32, unit stride along n; written in place.
        grouped_layout: int32. Row labels [m]: the group of every row, -1 for padding; every group starts at a multiple of
            `get_mk_alignment_for_contiguous_layout()`. With `use_psum_layout` end offsets [num_groups]: group i ends at
            ``grouped_layout[i]`` and starts at the previous end rounded up to that alignment.
        recipe, recipe_a, recipe_b, disable_ue8m0_cast: as in `fp8_fp4_gemm_nt`.
        compiled_dims: tuning hint, letters out of "mnk".
        use_psum_layout: whether grouped_layout holds end offsets.
        ensure_zero_padding: with end offsets, write zeros to the rows between a group's end and the next multiple of the
            alignment (the matching rows of a should be zero: some devices compute them). Otherwise, and for rows
            labelled -1, those rows of d are unspecified. Rows after the last aligned end keep their content.
        expected_m_for_psum_layout: rows per group to expect, a hint; only with end offsets.
        epilogue: Identity, Alpha or BF16StochasticRounding. `epilogue_class` is another name for it.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written. On CPU tensors this
            includes labels out of range and end offsets that decrease or pass m.
        UnsupportedOperationError: the backend has no kernel for this combination.

    Example:
        >>> import torch, unikernels as uk
        >>> a, b = torch.ones(256, 64).bfloat16(), torch.ones(2, 32, 64).bfloat16()
        >>> a, b = uk.per_token_cast_to_fp8(a, True), [uk.per_block_cast_to_fp8(group, True) for group in b]
        >>> b = tuple(torch.stack(part) for part in zip(*b))
        >>> d = torch.empty(256, 32)
        >>> labels = torch.tensor([0] * 128 + [1] * 100 + [-1] * 28, dtype=torch.int32)
        >>> uk.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, labels)
        >>> d[127, 0].item()
        64.0

    Contract: DeepGEMM 2.8.2, `m_grouped_fp8_fp4_gemm_nt_contiguous` (aliases `m_grouped_fp8_gemm_nt_contiguous`,
    `m_grouped_fp4_gemm_nt_contiguous`).
    """
    psum = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    contiguous_gemm(
        "m_grouped_fp8_fp4_gemm_nt_contiguous", a, b, d, grouped_layout, psum, epilogue, epilogue_class, compiled_dims,
        False, (recipe, recipe_a, recipe_b), disable_ue8m0_cast,
    )  # fmt: skip


def m_grouped_fp8_fp4_gemm_nn_contiguous(
    a: Pair,
    b: Pair,
    d: Tensor,
    grouped_layout: Tensor,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[row] = a[row] @ b[g], with b [num_groups, k, n] and its scales [num_groups, ceil(k/gran_k), ceil(n/gran_n)].

    Everything else as in `m_grouped_fp8_fp4_gemm_nt_contiguous`. An epilogue in the place of expected_m_for_psum_layout
    is taken as `epilogue` (CUDA has no such parameter here).

    Contract: DeepGEMM 2.8.2, `m_grouped_fp8_fp4_gemm_nn_contiguous` (alias `m_grouped_fp8_gemm_nn_contiguous`).
    """
    if isinstance(expected_m_for_psum_layout, Epilogue) and epilogue is None:
        epilogue, expected_m_for_psum_layout = expected_m_for_psum_layout, None
    psum = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    contiguous_gemm(
        "m_grouped_fp8_fp4_gemm_nn_contiguous", a, b, d, grouped_layout, psum, epilogue, epilogue_class, compiled_dims,
        True, (recipe, recipe_a, recipe_b), disable_ue8m0_cast,
    )  # fmt: skip


def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    grouped_layout: Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[row] = a[row] @ b[g].T for every row of every group g; a [m, k], b [num_groups, n, k] bfloat16.

    Everything else as in `m_grouped_fp8_fp4_gemm_nt_contiguous`.
    Contract: DeepGEMM 2.8.2, `m_grouped_bf16_gemm_nt_contiguous`.
    """
    psum = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    contiguous_gemm(
        "m_grouped_bf16_gemm_nt_contiguous",
        a,
        b,
        d,
        grouped_layout,
        psum,
        epilogue,
        epilogue_class,
        compiled_dims,
        False,
    )


def m_grouped_bf16_gemm_nn_contiguous(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    grouped_layout: Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[row] = a[row] @ b[g] for every row of every group g; a [m, k], b [num_groups, k, n] bfloat16.

    Everything else as in `m_grouped_fp8_fp4_gemm_nn_contiguous`.
    Contract: DeepGEMM 2.8.2, `m_grouped_bf16_gemm_nn_contiguous`.
    """
    if isinstance(expected_m_for_psum_layout, Epilogue) and epilogue is None:
        epilogue, expected_m_for_psum_layout = expected_m_for_psum_layout, None
    psum = (use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout)
    contiguous_gemm(
        "m_grouped_bf16_gemm_nn_contiguous",
        a,
        b,
        d,
        grouped_layout,
        psum,
        epilogue,
        epilogue_class,
        compiled_dims,
        True,
    )


def m_grouped_fp8_fp4_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: Tensor,
    masked_m: Tensor,
    expected_m: int,
    recipe: tuple[int, int, int] | None = None,
    recipe_a: tuple[int, int] | None = None,
    recipe_b: tuple[int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[g, row] = a[g, row] @ b[g].T for row < masked_m[g], with block-scaled FP8 or FP4 operands.

    Args:
        a: (data, scales). data [num_groups, max_m, k], unit stride along k; scales [num_groups, max_m, ceil(k/gran_k)].
            Rows at or past the mask may hold anything, in data and scales.
        b: (data, scales). data [num_groups, n, k], scales [num_groups, ceil(n/gran_n), ceil(k/gran_k)].
        d: [num_groups, max_m, n] bfloat16 or float32; rows at or past the mask are unspecified (CPU: untouched).
        masked_m: int32 [num_groups], 0 to max_m.
        expected_m: rows per group to expect, a hint; at least 0.
        recipe, recipe_a, recipe_b, disable_ue8m0_cast, compiled_dims: as in `fp8_fp4_gemm_nt`.
        epilogue: Identity, Alpha or BF16StochasticRounding. `epilogue_class` is another name for it.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.
        UnsupportedOperationError: the backend has no kernel for this combination.

    Contract: DeepGEMM 2.8.2, `m_grouped_fp8_fp4_gemm_nt_masked` (aliases `m_grouped_fp8_gemm_nt_masked`,
    `m_grouped_fp4_gemm_nt_masked`, `fp8_m_grouped_gemm_nt_masked`).
    """
    _masked(
        "m_grouped_fp8_fp4_gemm_nt_masked", a, b, d, masked_m, expected_m, epilogue, epilogue_class, compiled_dims,
        (recipe, recipe_a, recipe_b), disable_ue8m0_cast,
    )  # fmt: skip


def m_grouped_bf16_gemm_nt_masked(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    masked_m: Tensor,
    expected_m: int,
    compiled_dims: str = "nk",
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[g, row] = a[g, row] @ b[g].T for row < masked_m[g]; a [num_groups, max_m, k], b [num_groups, n, k] bfloat16.

    Everything else as in `m_grouped_fp8_fp4_gemm_nt_masked`.
    Contract: DeepGEMM 2.8.2, `m_grouped_bf16_gemm_nt_masked` (alias `bf16_m_grouped_gemm_nt_masked`).
    """
    _masked("m_grouped_bf16_gemm_nt_masked", a, b, d, masked_m, expected_m, epilogue, epilogue_class, compiled_dims)


m_grouped_fp8_gemm_nt_contiguous = m_grouped_fp4_gemm_nt_contiguous = m_grouped_fp8_fp4_gemm_nt_contiguous
m_grouped_fp8_gemm_nn_contiguous = m_grouped_fp8_fp4_gemm_nn_contiguous
m_grouped_fp8_gemm_nt_masked = m_grouped_fp4_gemm_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked
fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked
bf16_m_grouped_gemm_nt_masked = m_grouped_bf16_gemm_nt_masked
