"""DeepGEMM's scale layout functions, with the wanted layout as an argument instead of a property of the device.

The public functions of the same names choose that layout by backend; conversions themselves are in convert.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unikernels.errors import InvalidArgumentError

from .checks import normalize_scales
from .convert import convert_scales, empty_mn_major, mn_major_tma_aligned
from .decode import refuse_bad_scale
from .formats import ScaleFormat, Scales, align, ceil_div
from .grouped import KGroups, convert_k_grouped_scales, k_groups, place_k_grouped_scales
from .native_packing import transcode

_TMA_BYTES = 16
_MAX_K_GROUPS = 128


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """Return `x` elements rounded up to a multiple of 16 bytes.

    Raises:
        InvalidArgumentError: 16 is not a multiple of `element_size`.
    Contract: DeepGEMM 2.8.2, `get_tma_aligned_size`.
    """
    if element_size <= 0 or _TMA_BYTES % element_size:
        raise InvalidArgumentError(
            f"get_tma_aligned_size: element_size is {element_size}, expected 1, 2, 4, 8 or 16: TMA aligns to 16 bytes."
        )
    return align(x, _TMA_BYTES // element_size)


def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """Return float32 [.., mn, columns] with strides (P * columns, 1, P), P = mn rounded up to 4; values unchanged.

    A tensor that has these strides is returned as it is.
    Contract: DeepGEMM 2.8.2, `get_mn_major_tma_aligned_tensor`.
    """
    _check_float_matrix(sf, "get_mn_major_tma_aligned_tensor")
    return mn_major_tma_aligned(sf)


def get_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Tensor, psum_layout: Tensor | None = None, *, alignment: int = 128
) -> Tensor:
    """Return float32 [.., mn, columns] as int32 [.., mn, ceil(columns / 4)], four exponents a word, MN-major.

    Strides (P * words, 1, P) with P = mn rounded up to 4; bytes past the last column are 0.

    Args:
        psum_layout: int32 [num_groups] end offsets; rows in no group are not read and become 0. Only for contiguous
            [mn, columns].
        alignment: where prefix-sum groups start.
    Raises:
        InvalidArgumentError: a scale that is read is no power of two.
    Contract: DeepGEMM 2.8.2, `get_mn_major_tma_aligned_packed_ue8m0_tensor`.
    """
    function = "get_mn_major_tma_aligned_packed_ue8m0_tensor"
    _check_float_matrix(sf, function)
    if psum_layout is not None:
        _check_psum_source(sf, function)
        _check_ends(psum_layout, sf, function)
    mn, num_blocks = sf.shape[-2:]
    scales = Scales(sf, ScaleFormat.FP32, 1, 128, mn, 128 * num_blocks)
    packed = convert_scales(
        scales, ScaleFormat.UE8M0X4_INT32, psum_layout=psum_layout, alignment=alignment, name=f"{function}: sf"
    )
    return packed.data


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Tensor,
    grouped_layout: Tensor,
    ks_cpu: Sequence[int] | None,
    gran_k: int,
    k_alignment: int,
    use_psum_layout: bool = False,
) -> Tensor:
    """Return float32 [sum_sf_k, mn] as int32 [words, mn]: four exponents a word, each group starting a new word row.

    Args:
        sf: contiguous, mn a multiple of 4. Group i owns ks[i] / gran_k rows; with prefix sums rows for the size rounded
            up to `k_alignment`, or for the size itself (DeepGEMM 2.6.1) if only that fits the row count.
        grouped_layout: int32 [num_groups], at most 128: the sizes, or end offsets with `use_psum_layout`.
        ks_cpu: group sizes; with prefix sums either as they are or rounded up, and None or [] is allowed: the result
            then has (sum_sf_k + 3 * num_groups) // 4 rows, zero past the last group.
    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks, or the first scale that is no power of two.
    Contract: DeepGEMM 2.8.2, `get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor`.
    """
    function = "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor"
    num_groups = grouped_layout.numel()
    _check_k_grouped(sf, num_groups, gran_k, k_alignment, function)
    ks = list(ks_cpu) if ks_cpu else None
    if sf.shape[0] == 0:
        return torch.empty((0, sf.shape[1]), dtype=torch.int32, device=sf.device)
    name = f"{function}: sf"
    groups = k_groups(
        ks,
        grouped_layout,
        gran_k=gran_k,
        alignment=k_alignment,
        use_psum_layout=use_psum_layout,
        sf=sf,
        name=name,
    )
    if ks is not None:
        _check_ks(ks, groups.sizes, grouped_layout, gran_k, k_alignment, use_psum_layout, function)
        if sf.shape[0] != groups.num_rows:
            raise InvalidArgumentError(
                f"{function}: sf has {sf.shape[0]} rows, expected {groups.num_rows}: one per {gran_k} elements of "
                f"groups of {list(groups.sizes)} elements."
            )
    bound = 0 if ks is not None else (sf.shape[0] + 3 * num_groups) // 4
    return convert_k_grouped_scales(sf, groups, ScaleFormat.UE8M0X4_INT32, min_rows=bound, name=name)


def transform_sf(
    sf: Tensor,
    mn: int,
    k: int,
    recipe: Sequence[int],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Tensor | None = None,
    *,
    target: ScaleFormat,
    alignment: int = 128,
    function: str = "transform_sf_into_required_layout",
    convert: Callable[..., Scales] = convert_scales,
    pack: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the scales of a [mn, k] operand in the layout that kernels of `target` read.

    =============================  ========  ========  ========================================
    input                          gran_mn   gran_k    target, result
    =============================  ========  ========  ========================================
    float32                        1         128       FP32: MN-major, TMA-aligned
    float32                        128       128       FP32: as it is, if its blocks are dense
    float32                        any       32, 128   UE8M0X4_INT32: packed, rows repeated
    int32                          1         32, 128   UE8M0X4_INT32: as it is, or made MN-major
    float32, int32, int16, bytes   1 to 128  32, 128   UE8M0X2_INT16: packed per 32, rows repeated
    =============================  ========  ========  ========================================

    Args:
        recipe: (gran_m, gran_n, gran_k) together with `is_sfa`, or (gran_mn, gran_k) without.
        num_groups: size of a leading dimension of `sf`.
        disable_ue8m0_cast: keep float32 scales float32 whatever the target (first two lines of the table).
        psum_layout, alignment: row groups of an A scale; rows in no group are not read and become 0 when packing.
        convert, pack: a backend's own `convert_scales` and `words_of_bytes`.
    Raises:
        InvalidArgumentError: any other combination, a wrong shape, or a scale that is no power of two.
    Contract: DeepGEMM 2.8.2, `transform_sf_into_required_layout`; to int16, gran_k 128, int32 and a gran_mn that is no
        power of two are ours.
    """
    gran_mn, gran_k = _granularity(recipe, is_sfa, function)
    scales = normalize_scales(
        sf,
        mn=mn,
        k=k,
        gran_mn=gran_mn,
        gran_k=gran_k,
        num_groups=num_groups,
        name="sf",
        function=function,
        recipe_form="single",
        pack=pack,
    )
    if psum_layout is not None:
        if is_sfa is False:
            raise InvalidArgumentError(f"{function}: psum_layout is given for a B scale, expected an A scale.")
        _check_ends(psum_layout, sf, function)
        if scales.format is ScaleFormat.FP32 and target is not ScaleFormat.FP32:
            _check_psum_source(sf, function)
    if scales.format is ScaleFormat.FP32 and disable_ue8m0_cast:
        target = ScaleFormat.FP32
    _check_combination(scales, target, function)
    if target is ScaleFormat.FP32 and gran_mn != 1:
        _check_dense_blocks(scales.data, function)
    converted = convert(scales, target, psum_layout=psum_layout, alignment=alignment, name=f"{function}: sf")
    return converted.data


def transform_k_grouped_sf(
    sf: Tensor,
    mn: int,
    k: int,
    recipe: Sequence[int],
    is_sfa: bool,
    psum_layout: Tensor,
    *,
    alignment: int = 256,
    function: str = "transform_k_grouped_sf_into_required_layout",
    convert: Callable[[Scales, KGroups | None, Tensor, int, str], Tensor] | None = None,
    place: Callable[[Tensor, int, KGroups | None], Scales | None] | None = None,
    pack: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return k-grouped scales in the layout of Ascend: int16 [mn, ceil(k / 64)], strides (1, mn).

    Args:
        sf: [ceil(mn / gran_mn), ceil(k / gran_k)] float32 or its packed forms: the transposed view of the K-first
            tensor. int32 with gran_k 128: [mn, words] where every group starts a new word, gran_mn 1.
        psum_layout: int32 [num_groups] end offsets along K; groups start at multiples of `alignment`. Scales of no
            group are not read, their bytes are 0. On a device other than the CPU only `convert` and `place` look at it.
        convert, pack: a backend's own `convert_scales_within_k_groups` and `words_of_bytes`.
        place: a backend's own `place_k_grouped_scales` of (K-first tensor, gran_k, groups).
    Raises:
        InvalidArgumentError: a wrong shape or recipe, groups that leave [0, k), or a scale that is no power of two.
    Contract: DeepGEMM-Ascend 0.1.0, `transform_k_grouped_sf_into_required_layout`; int32 is ours.
    """
    gran_mn, gran_k = _granularity(recipe, is_sfa, function)
    _check_ends(psum_layout, sf, function)
    name = f"{function}: sf"
    if sf.dtype == torch.int32 and gran_k == 128:
        groups = _groups_on_host(psum_layout, k, gran_k, 2, alignment, function)
        _check_words_per_group(sf, mn, gran_mn, groups, function)
        placed = None if place is None else place(sf.mT, gran_k, groups)
        if placed is None:
            groups = groups or k_groups(None, psum_layout, gran_k=gran_k, alignment=alignment, use_psum_layout=True)
            placed = place_k_grouped_scales(sf.mT, groups, k, name=name)
        return placed.data
    scales = normalize_scales(
        sf, mn=mn, k=k, gran_mn=gran_mn, gran_k=gran_k, name="sf", function=function, recipe_form="single", pack=pack
    )
    _check_combination(scales, ScaleFormat.UE8M0X2_INT16, function)
    groups = _groups_on_host(psum_layout, k, gran_k, max(2, scales.format.per_word), alignment, function)
    return (convert or convert_scales_within_k_groups)(scales, groups, psum_layout, alignment, name)


def _groups_on_host(
    psum_layout: Tensor, k: int, gran_k: int, per_word: int, alignment: int, function: str
) -> KGroups | None:
    """Return the checked groups of end offsets along K; None where reading them would wait for a device."""
    if alignment % max(64, per_word * gran_k):
        raise InvalidArgumentError(
            f"{function}: alignment is {alignment}, expected a multiple of {max(64, per_word * gran_k)}: a word of "
            "scales must not cross groups."
        )
    if psum_layout.device.type != "cpu":
        return None
    groups = k_groups(None, psum_layout, gran_k=gran_k, alignment=alignment, use_psum_layout=True, name=function)
    if groups.starts and max(start + size for start, size in zip(groups.starts, groups.sizes, strict=True)) > k:
        raise InvalidArgumentError(
            f"{function}: psum_layout is {psum_layout.tolist()}, expected end offsets within k={k}."
        )
    return groups


def _check_words_per_group(sf: Tensor, mn: int, gran_mn: int, groups: KGroups | None, function: str) -> None:
    needed = 0 if groups is None else groups.num_words
    if gran_mn != 1 or sf.dim() != 2 or sf.shape[0] != mn or sf.shape[1] < needed:
        raise InvalidArgumentError(
            f"{function}: sf holds int32 words of shape {tuple(sf.shape)} per {gran_mn}x128 block, expected gran_mn 1 and "
            f"({mn}, {'words' if groups is None else f'at least {needed}'}): four scales along K a word, every group "
            "starting a new one."
        )


def convert_scales_within_k_groups(
    scales: Scales, groups: KGroups | None, psum_layout: Tensor, alignment: int, name: str
) -> Tensor:
    """Return int16 [mn, ceil(k / 64)], strides (1, mn), of scales of one matrix; bytes of no group along K are 0.

    Args:
        groups: the groups of `psum_layout` (end offsets along K) and `alignment`, as the host knows them; None reads
            them from the device.
        psum_layout, alignment: what a device reads instead.
        name: what messages call the tensor.
    """
    gran_mn, gran_k = scales.gran_mn, scales.gran_k
    groups = groups or k_groups(None, psum_layout, gran_k=gran_k, alignment=alignment, use_psum_layout=True, name=name)
    out = empty_mn_major((), scales.mn, ceil_div(scales.k, 64), scales.mn, torch.int16, scales.data.device).zero_()
    source, per_word = scales.data, scales.format.per_word
    for start, size in zip(groups.starts, groups.sizes, strict=True):
        first, count = start // gran_k, ceil_div(size, gran_k)
        part = source[:, first // per_word : ceil_div(first + count, per_word)]
        sink = out[:, start // 64 : ceil_div(start + size, 64)]
        bad = transcode(part, count, sink, ceil_div(size, 32), gran_mn=gran_mn, k_repeat=gran_k // 32)
        if bad >= 0:
            row, column = divmod(bad, count)
            refuse_bad_scale(source, row * source.shape[1] + first + column, name)
    return out


def _granularity(recipe: Sequence[int], is_sfa: bool | None, function: str) -> tuple[int, int]:
    if len(recipe) == 3 and is_sfa is not None:
        return recipe[0 if is_sfa else 1], recipe[2]
    if len(recipe) == 2 and is_sfa is None:
        return recipe[0], recipe[1]
    raise InvalidArgumentError(
        f"{function}: recipe is {tuple(recipe)} with is_sfa={is_sfa}, expected (gran_m, gran_n, gran_k) with is_sfa, "
        "which picks gran_m or gran_n, or (gran_mn, gran_k) without is_sfa."
    )


def _check_combination(scales: Scales, target: ScaleFormat, function: str) -> None:
    gran_mn, gran_k, source = scales.gran_mn, scales.gran_k, scales.format
    if target is ScaleFormat.FP32:
        fits = source is ScaleFormat.FP32 and gran_mn in (1, 128) and gran_k == 128
        expected = "float32 scales per 1x128 or 128x128 block"
    elif target is ScaleFormat.UE8M0X4_INT32:
        fits = gran_k in (32, 128) and (
            source is ScaleFormat.FP32 or (source is ScaleFormat.UE8M0X4_INT32 and gran_mn == 1)
        )
        expected = "float32 scales, or int32 with gran_mn=1, and gran_k 32 or 128"
    else:
        fits = gran_k in (32, 128) and 1 <= gran_mn <= 128
        expected = "gran_mn 1 to 128, gran_k 32 or 128"
    if not fits:
        raise InvalidArgumentError(
            f"{function}: sf holds {source.label} scales per {gran_mn}x{gran_k} block, expected {expected} for a "
            f"{target.label} kernel.\n  unikernels.scale_layouts.convert_scales converts between all formats."
        )


def _check_dense_blocks(sf: Tensor, function: str) -> None:
    if not (sf.is_contiguous() or sf.transpose(-1, -2).is_contiguous()):
        raise InvalidArgumentError(
            f"{function}: sf has strides {sf.stride()} for shape {tuple(sf.shape)}, expected dense rows or dense "
            "columns: block scales are used as they are.\n  Pass sf.contiguous()."
        )


def _check_float_matrix(sf: Tensor, function: str) -> None:
    if sf.dtype != torch.float32 or sf.dim() not in (2, 3):
        raise InvalidArgumentError(
            f"{function}: sf is {sf.dtype} of shape {tuple(sf.shape)}, expected torch.float32 [mn, columns] or "
            "[num_groups, mn, columns]."
        )


def _check_psum_source(sf: Tensor, function: str) -> None:
    if sf.dim() != 2 or not sf.is_contiguous():
        raise InvalidArgumentError(
            f"{function}: with psum_layout, sf of shape {tuple(sf.shape)} and strides {sf.stride()} must be contiguous "
            "[mn, columns].\n  Pass sf.contiguous()."
        )


def _check_ends(psum_layout: Tensor, sf: Tensor, function: str) -> None:
    if psum_layout.dtype != torch.int32 or psum_layout.dim() != 1 or psum_layout.device != sf.device:
        raise InvalidArgumentError(
            f"{function}: psum_layout is {psum_layout.dtype} of shape {tuple(psum_layout.shape)} on "
            f"'{psum_layout.device}', expected torch.int32 [num_groups] end offsets on '{sf.device}'."
        )


def _check_k_grouped(sf: Tensor, num_groups: int, gran_k: int, k_alignment: int, function: str) -> None:
    if sf.dtype != torch.float32 or sf.dim() != 2 or not sf.is_contiguous() or sf.shape[1] % 4:
        raise InvalidArgumentError(
            f"{function}: sf is {sf.dtype} of shape {tuple(sf.shape)} and strides {sf.stride()}, expected contiguous "
            "torch.float32 [sum_sf_k, mn] with mn a multiple of 4."
        )
    if num_groups > _MAX_K_GROUPS:
        raise InvalidArgumentError(f"{function}: grouped_layout has {num_groups} groups, expected at most 128.")
    if gran_k not in (32, 128):
        raise InvalidArgumentError(f"{function}: gran_k is {gran_k}, expected 32 or 128.")
    if k_alignment <= 0 or k_alignment % 128:
        raise InvalidArgumentError(f"{function}: k_alignment is {k_alignment}, expected a multiple of 128.")


def _check_ks(
    ks: list[int],
    sizes: tuple[int, ...],
    grouped_layout: Tensor,
    gran_k: int,
    k_alignment: int,
    use_psum_layout: bool,
    function: str,
) -> None:
    if use_psum_layout:
        aligned = [align(size, k_alignment) for size in sizes]
        if ks not in (aligned, list(sizes)):
            raise InvalidArgumentError(
                f"{function}: ks_cpu is {ks}, but grouped_layout holds groups of {list(sizes)} elements.\n"
                f"  Pass the sizes rounded up to {k_alignment}: {aligned}."
            )
        return
    step = max(gran_k, k_alignment)
    if any(size % step for size in ks):
        raise InvalidArgumentError(
            f"{function}: ks_cpu is {ks}, expected multiples of k_alignment={k_alignment}.\n  Pad each group along K."
        )
    if len(ks) != grouped_layout.numel() or (grouped_layout.device.type == "cpu" and grouped_layout.tolist() != ks):
        raise InvalidArgumentError(
            f"{function}: grouped_layout is {grouped_layout.tolist()}, expected the sizes in ks_cpu, {ks}."
        )
