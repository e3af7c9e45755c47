"""GEMMs grouped along K (weight gradients). Groups along M are in m_grouped.py.

Contract: DeepGEMM 2.8.2, section "K-grouped GEMM"; differences are listed in docs/compatibility.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _registry, validate, validate_groups
from .._registry import bound
from ..epilogue import Epilogue, FP8CastWithClamp
from ..errors import InvalidArgumentError
from ..operations.k_grouped import KGroupedGemmProblem, KGroupLayout
from ..operations.operands import Operand
from ..scale_layouts import ScaleFormat
from ..validate_plain import boolean
from . import k_grouped_scales
from .gemm import Pair, write_empty_product
from .keyword_aliases import accepts_alias

#: Default of the FP8 functions. Compared by identity: left out, it follows the scales and the backend.
_FP8_RECIPE = (1, 1, 128)
_MX_RECIPE = (1, 1, 32)
#: Group starts along K are multiples of this everywhere, so that no word of scales holds two groups (2.8.2).
_K_UNIT = 128


def _k_first(function: str, name: str, data: Tensor, kinds: tuple[str, ...]) -> Operand:
    """Read a contiguous [sum_k, mn] tensor as the operand [mn, sum_k]."""
    stored = validate.matrix(function, name, data, ndim=2, kinds=kinds)  # type: ignore[arg-type]
    validate.require_contiguous(function, name, data)
    return Operand(stored.data.transpose(0, 1), stored.kind, stored.k, stored.mn, False)


def _k_last(function: str, name: str, data: Tensor, kinds: tuple[str, ...]) -> Operand:
    """Read a contiguous [mn, sum_k] tensor, K packed for FP4."""
    stored = validate.matrix(function, name, data, ndim=2, kinds=kinds)  # type: ignore[arg-type]
    validate.require_contiguous(function, name, data)
    k = data.shape[1] * (2 if stored.kind == "fp4" else 1)
    return Operand(stored.data, stored.kind, data.shape[0], k, True)


def _flat(function: str, name: str, data: Tensor, mn: int, ks: tuple[int, ...] | None) -> Operand:
    """Join the row-major [mn, k_i] blocks of a flat buffer into [mn, sum_k]."""
    if data.dtype is not torch.float8_e4m3fn:
        validate.require_dtype(function, name, data, torch.float8_e4m3fn)
    validate.require_contiguous(function, name, data)
    if ks is None:
        raise InvalidArgumentError(
            f"{function}: ks_cpu is missing, expected the list of group sizes: {name} of shape {validate.shape_of(data)} is "
            f"taken as one [{mn}, k_i] block per group."
        )
    sum_k = sum(ks)
    if data.numel() != mn * sum_k:
        raise InvalidArgumentError(
            f"{function}: {name} has {data.numel()} elements (shape {validate.shape_of(data)}), expected {mn * sum_k}: one "
            f"[{mn}, k_i] block per group, sum of ks_cpu is {sum_k}."
        )
    joined = torch.empty((mn, sum_k), dtype=torch.uint8, device=data.device)
    if sum_k and not data.is_meta:
        blocks = data.view(-1).view(torch.uint8).split([mn * k for k in ks])
        torch.cat([block.view(mn, -1) for block, k in zip(blocks, ks, strict=True) if k], dim=1, out=joined)
    return Operand(joined.view(data.dtype), "fp8", mn, sum_k, True)


def _layout(
    function: str, value: object, d: Tensor, a: Operand, ks: tuple[int, ...] | None, uses_psum: bool
) -> KGroupLayout:
    """Check sizes on the host, the device tensor, and where cheap that they agree."""
    num_groups, k = d.shape[0], a.k
    what = "end offsets, one per group (use_psum_layout=True)." if uses_psum else "the size of every group."
    tensor = validate_groups.int32_vector(function, "grouped_layout", value, num_groups, what, d)
    if ks is not None and len(ks) != num_groups:
        raise InvalidArgumentError(
            f"{function}: ks_cpu has {len(ks)} sizes, expected {num_groups}, one per group of d."
        )
    alignment = validate_groups.mk_alignment(d)
    if uses_psum:
        if alignment % _K_UNIT:
            raise InvalidArgumentError(
                f"{function}: the alignment in force is {alignment}, expected a multiple of {_K_UNIT} for groups along K. "
                f"Call set_mk_alignment_for_contiguous_layout({-(-alignment // _K_UNIT) * _K_UNIT}) before laying out data."
            )
        if ks is not None:
            ks = tuple(-(-size // alignment) * alignment for size in ks)
            _require_total(function, k, sum(ks), f"sum of ks_cpu, each rounded up to the alignment {alignment}")
        validate_groups.end_offsets(function, tensor, k, "elements along K")
        return KGroupLayout("psum", tensor, alignment, ks)
    if ks is None:
        raise InvalidArgumentError(
            f"{function}: ks_cpu is missing, expected the list of group sizes. Only end offsets (use_psum_layout=True) do "
            f"without."
        )
    for index, size in enumerate(ks):
        if size % _K_UNIT:
            raise InvalidArgumentError(
                f"{function}: ks_cpu[{index}] is {size}, expected a multiple of {_K_UNIT}. Pad groups with zeros, or use "
                f"end offsets (use_psum_layout=True), which allow any size."
            )
    _require_total(function, k, sum(ks), "sum of ks_cpu")
    if tensor.device.type == "cpu" and tensor.tolist() != list(ks):
        raise InvalidArgumentError(
            f"{function}: grouped_layout holds {tensor.tolist()} but ks_cpu is {list(ks)}, expected the same sizes. End "
            f"offsets need use_psum_layout=True."
        )
    return KGroupLayout("plain", tensor, alignment, ks)


def _require_total(function: str, k: int, expected: int, why: str) -> None:
    if k != expected:
        raise InvalidArgumentError(f"{function}: a has {k} elements along K, expected {expected}: {why}.")


def _run(
    function: str,
    a: Operand,
    b: Operand,
    d: object,
    c: object,
    ks_cpu: object,
    grouped_layout: object,
    use_psum_layout: object,
    compiled_dims: object,
    epilogue: object,
    epilogue_class: object,
    gran_k: int = 0,
    **scale_tensors: Tensor,
) -> None:
    """Check what all four functions share, treat empty problems, attach scales, call the backend."""
    validate.compiled_dims(function, compiled_dims)
    uses_psum = boolean(function, "use_psum_layout", use_psum_layout)
    ks = validate_groups.group_sizes(function, ks_cpu)
    factor, store = validate.epilogue_and_alpha(function, None, epilogue, epilogue_class)
    if isinstance(store, FP8CastWithClamp):
        raise InvalidArgumentError(
            f"{function}: epilogue {type(store).__name__} is not offered by grouped GEMMs, expected a bfloat16 or float32 d. "
            f"Quantise d afterwards with per_token_cast_to_fp8."
        )
    validate.require_equal_k(function, a, b)
    d = _output_with_groups(function, d)
    validate.output(function, "d", d, (d.shape[0], a.mn, b.mn), validate.output_dtypes(store), "(num_groups, m, n)")
    validate.require_contiguous(function, "d", d)
    addend = validate.addend(function, c, d)
    if addend is not None:
        validate.require_contiguous(function, "c", addend)
    validate.epilogue_outputs(function, store, addend, a.mn, b.mn, d)
    validate.require_same_device(function, d, a=a.data, b=b.data, **scale_tensors)
    layout = _layout(function, grouped_layout, d, a, ks, uses_psum)
    if d.numel() == 0:
        return
    validate.refuse_overlap(function, "d", d, a=a.data, b=b.data, grouped_layout=layout.tensor, **scale_tensors)
    if a.k == 0:
        write_empty_product(d, addend, store)
        return
    if scale_tensors:
        a = k_grouped_scales.attach(function, "sfa", a, scale_tensors["sfa"], gran_k, layout, ks)
        b = k_grouped_scales.attach(function, "sfb", b, scale_tensors["sfb"], gran_k, layout, ks)
    bound("k_grouped_gemm", d)(KGroupedGemmProblem(a, b, d, layout, addend, factor, store))


def _output_with_groups(function: str, d: object) -> Tensor:
    tensor = validate.require_tensor(function, "d", d)
    if tensor.ndim != 3:
        raise InvalidArgumentError(
            f"{function}: d has shape {validate.shape_of(tensor)}, expected three dimensions (num_groups, m, n)."
        )
    return tensor


def _gran_k(function: str, recipe: object, allowed: tuple[int, ...], scales: Tensor) -> int:
    """Read the recipe; one that was left out follows int16 and byte scales, and backends that have only those."""
    if recipe is _FP8_RECIPE:
        has_mx_words = scales.dtype not in (torch.float32, torch.int32)
        backend = _registry.current_backend() if scales.is_meta else _registry.backend_for(scales)
        if has_mx_words or backend.scale_format is ScaleFormat.UE8M0X2_INT16:
            return 32
    if (
        not isinstance(recipe, (tuple, list))
        or len(recipe) != 3
        or tuple(recipe[:2]) != (1, 1)
        or recipe[2] not in allowed
    ):
        forms = " or ".join(str((1, 1, gran)) for gran in allowed)
        raise InvalidArgumentError(f"{function}: recipe is {recipe!r}, expected {forms}.")
    return int(recipe[2])


@accepts_alias("ks_cpu", "ks")
def k_grouped_fp8_gemm_tn_contiguous(
    a: Pair,
    b: Pair,
    d: Tensor,
    ks_cpu: list[int] | None,
    grouped_layout: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] = _FP8_RECIPE,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: Epilogue | None = None,
    *,
    ks: list[int] | None = None,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[g] = c[g] + sum over k in group g of a[k].T @ b[k] with block-scaled FP8 operands, K first.

    Args:
        a: (data, scales). data [sum_k, m] float8_e4m3fn (or FP4 packed along m, as in `fp8_fp4_gemm_nt`), contiguous;
            scales [sum_k/gran_k, m] float32; packed UE8M0 with gran_k 32: int32 [>= ceil(sum_k/128), m], int16
            [ceil(sum_k/64), m]. With end offsets the rows of gaps count; float32 scales, and int32 with gran_k 128, may
            also leave them out (2.6.1) where the host knows the group sizes: from grouped_layout on the CPU, or ks_cpu.
            On Ascend kernels read the sizes.
        b: (data, scales) in the same way with n for m.
        d: [num_groups, m, n] bfloat16 or float32, contiguous; written in place.
        ks_cpu: sizes of the groups along K, multiples of 128, whose sum is sum_k. With `use_psum_layout` they may have any
            size (each counts rounded up to the alignment), or be None or []. `ks` is another name for it.
        grouped_layout: int32 [num_groups]: the same sizes; with `use_psum_layout` end offsets: group i ends at
            ``grouped_layout[i]`` and starts at the previous end rounded up to
            `get_mk_alignment_for_contiguous_layout()`. Data in the gaps must be zero.
        c: like d, added; may be `d` itself; None adds nothing. An empty group gives d[g] = c[g], or zeros.
        recipe: (1, 1, gran_k), gran_k 32 or 128. Left out, gran_k is 32 for int16 scales and on backends that have only
            those.
        compiled_dims: tuning hint, letters out of "mnk".
        use_psum_layout: whether grouped_layout holds end offsets.
        epilogue: Identity, Alpha, or (without c) BF16StochasticRounding. `epilogue_class` is another name for it.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.
        UnsupportedOperationError: the backend has no kernel for this combination.

    Example:
        >>> import torch, unikernels as uk
        >>> a = (torch.ones(256, 4).to(torch.float8_e4m3fn), torch.ones(2, 4))
        >>> d = torch.empty(2, 4, 4)
        >>> uk.k_grouped_fp8_gemm_tn_contiguous(a, a, d, [256, 0], torch.tensor([256, 0], dtype=torch.int32))
        >>> d[:, 0, 0].tolist()
        [256.0, 0.0]

    Contract: DeepGEMM 2.8.2, `k_grouped_fp8_gemm_tn_contiguous`; FP4 operands are DeepGEMM-Ascend's.
    """
    function = "k_grouped_fp8_gemm_tn_contiguous"
    (a_data, sfa), (b_data, sfb) = validate.pair(function, "a", a), validate.pair(function, "b", b)
    left = _k_first(function, "a", a_data, ("fp8", "fp4"))
    right = _k_first(function, "b", b_data, ("fp8", "fp4"))
    gran_k = _gran_k(function, recipe, (32, 128), sfa)
    _run(
        function, left, right, d, c, ks_cpu, grouped_layout, use_psum_layout, compiled_dims, epilogue, epilogue_class,
        gran_k, sfa=sfa, sfb=sfb,
    )  # fmt: skip


@accepts_alias("ks_cpu", "ks")
def k_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Tensor,
    ks_cpu: list[int] | None,
    grouped_layout: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] = _FP8_RECIPE,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: Epilogue | None = None,
    *,
    ks: list[int] | None = None,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[g] = c[g] + a_g @ b_g.T with block-scaled FP8 operands, K last.

    Args:
        a: (data, scales). data either flat: one row-major [m, ks_cpu[i]] block per group after the other (m * sum_k
            elements, any shape; copied into one matrix); or [m, sum_k] contiguous. scales [m, ceil(sum_k/gran_k)], the
            transposed forms of `k_grouped_fp8_gemm_tn_contiguous`.
        b: (data, scales) in the same way with n for m.
        ks_cpu: needed for flat data.

    Everything else as in `k_grouped_fp8_gemm_tn_contiguous`.
    Contract: DeepGEMM 2.8.2, `k_grouped_fp8_gemm_nt_contiguous` (flat); DeepGEMM-Ascend (matrices).
    """
    function = "k_grouped_fp8_gemm_nt_contiguous"
    (a_data, sfa), (b_data, sfb) = validate.pair(function, "a", a), validate.pair(function, "b", b)
    d = _output_with_groups(function, d)
    sizes = validate_groups.group_sizes(function, ks_cpu)
    operands = []
    for name, data, mn, other in (("a", a_data, d.shape[1], sfa), ("b", b_data, d.shape[2], sfb)):
        is_matrix = (
            data.ndim == 2 and data.shape[0] == mn and (sizes is None or use_psum_layout or data.shape[1] == sum(sizes))
        )
        operands.append(
            _k_last(function, name, data, ("fp8",)) if is_matrix else _flat(function, name, data, mn, sizes)
        )
        if other.ndim != 2:
            raise InvalidArgumentError(
                f"{function}: sf{name} has shape {validate.shape_of(other)}, expected two dimensions ({mn}, scales along K)."
            )
    gran_k = _gran_k(function, recipe, (32, 128), sfa)
    _run(
        function, operands[0], operands[1], d, c, ks_cpu, grouped_layout, use_psum_layout, compiled_dims, epilogue, epilogue_class,
        gran_k, sfa=sfa.transpose(0, 1), sfb=sfb.transpose(0, 1),
    )  # fmt: skip


@accepts_alias("ks_cpu", "ks")
def k_grouped_fp4_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Tensor,
    ks_cpu: list[int] | None,
    grouped_layout: Tensor,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] = _MX_RECIPE,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: Epilogue | None = None,
    *,
    ks: list[int] | None = None,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[g] = c[g] + a_g @ b_g.T with FP4 operands, K last, and one scale per 32 elements.

    Args:
        a: (data, scales). data packed FP4 along K: [m, sum_k/2] int8, contiguous; scales K first as in
            `k_grouped_fp8_gemm_tn_contiguous`: [sum_k/32, m] float32 or packed.
        b: (data, scales) in the same way with n for m.
        recipe: (1, 1, 32).

    Everything else as in `k_grouped_fp8_gemm_tn_contiguous`.
    Contract: DeepGEMM 2.8.2, `k_grouped_fp4_gemm_nt_contiguous`.
    """
    function = "k_grouped_fp4_gemm_nt_contiguous"
    (a_data, sfa), (b_data, sfb) = validate.pair(function, "a", a), validate.pair(function, "b", b)
    left = _k_last(function, "a", a_data, ("fp4",))
    right = _k_last(function, "b", b_data, ("fp4",))
    gran_k = _gran_k(function, recipe, (32,), sfa)
    _run(
        function, left, right, d, c, ks_cpu, grouped_layout, use_psum_layout, compiled_dims, epilogue, epilogue_class,
        gran_k, sfa=sfa, sfb=sfb,
    )  # fmt: skip


@accepts_alias("ks_cpu", "ks")
def k_grouped_bf16_gemm_tn_contiguous(
    a: Tensor,
    b: Tensor,
    d: Tensor,
    ks_cpu: list[int] | None,
    grouped_layout: Tensor,
    c: Tensor | None = None,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: Epilogue | None = None,
    *,
    ks: list[int] | None = None,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d[g] = c[g] + sum over k in group g of a[k].T @ b[k]; a [sum_k, m], b [sum_k, n] bfloat16, contiguous.

    Everything else as in `k_grouped_fp8_gemm_tn_contiguous`.
    Contract: DeepGEMM 2.8.2, `k_grouped_bf16_gemm_tn_contiguous`.
    """
    function = "k_grouped_bf16_gemm_tn_contiguous"
    left = _k_first(function, "a", validate.require_tensor(function, "a", a), ("bf16",))
    right = _k_first(function, "b", validate.require_tensor(function, "b", b), ("bf16",))
    _run(function, left, right, d, c, ks_cpu, grouped_layout, use_psum_layout, compiled_dims, epilogue, epilogue_class)
