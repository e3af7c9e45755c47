"""Scale layout functions (contract 3.8): thin fronts that add the backend's own layout and the global alignment.

The conversions themselves live in `unikernels.scale_layouts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import _registry, scale_layouts, validate
from ..operations.k_grouped import KGroupLayout
from ..scale_layouts import KGroups, Scales
from .runtime import get_mk_alignment_for_contiguous_layout


def transform_sf_into_required_layout(
    sf: Tensor,
    mn: int,
    k: int,
    recipe: tuple[int, ...],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Tensor | None = None,
) -> Tensor:
    """Bring scales into the layout that the backend in force consumes without further conversion.

    Args:
        sf: [ceil(mn/gran_mn), ceil(k/gran_k)] float32 or packed UE8M0 (int32, int16), with a leading num_groups if given.
        mn, k: logical sizes of the operand.
        recipe: (gran_m, gran_n, gran_k) together with `is_sfa`, or (gran_mn, gran_k) without it.
        num_groups: groups of a grouped operand.
        is_sfa: whether these are A's scales (gran_m applies) or B's (gran_n applies).
        disable_ue8m0_cast: keep float32 scales, MN-major and TMA-aligned.
        psum_layout: int32 [num_groups] group ends of an A operand; rows in gaps are not read and become 0.

    Returns:
        The scales in the backend's layout; the same tensor when it already has that layout.

    Raises:
        InvalidArgumentError: wrong shape or dtype, or float32 scales that are not powers of two where exponents are needed.

    Contract: DeepGEMM 2.8.2, `transform_sf_into_required_layout`.
    """
    backend = _registry.backend_for(validate.require_tensor("transform_sf_into_required_layout", "sf", sf))
    return scale_layouts.transform_sf(
        sf,
        mn,
        k,
        recipe,
        num_groups=num_groups,
        is_sfa=is_sfa,
        disable_ue8m0_cast=disable_ue8m0_cast,
        psum_layout=psum_layout,
        target=backend.scale_format,
        alignment=get_mk_alignment_for_contiguous_layout(),
        convert=backend.convert_scales,
        pack=backend.words_of_scale_bytes,
    )


def transform_k_grouped_sf_into_required_layout(
    sf: Tensor, mn: int, k: int, recipe: tuple[int, int, int], is_sfa: bool, psum_layout: Tensor
) -> Tensor:
    """Bring k-grouped scales into the Ascend layout (int16, two UE8M0 along K, MN-major).

    Args:
        sf: [ceil(mn/gran_mn), ceil(k/gran_k)] float32 or packed UE8M0: the transposed view of the K-first scales. int32
            with gran_k 128: [mn, words], every group starting a new word.
        mn, k: logical sizes of the operand.
        recipe: (gran_m, gran_n, gran_k).
        is_sfa: whether these are A's scales.
        psum_layout: int32 [num_groups] group ends along K, checked on the CPU only; bytes beyond a group's end become 0.

    Contract: DeepGEMM-Ascend, `transform_k_grouped_sf_into_required_layout`.
    """
    function = "transform_k_grouped_sf_into_required_layout"
    backend = _registry.backend_for(validate.require_tensor(function, "sf", sf))
    validate.require_tensor(function, "psum_layout", psum_layout)
    alignment = get_mk_alignment_for_contiguous_layout()

    def place(k_first: Tensor, gran_k: int, groups: KGroups | None) -> Scales | None:
        layout = KGroupLayout("psum", psum_layout, alignment)
        return backend.place_k_grouped_scales(k_first, gran_k, k, layout, groups, f"{function}: sf")

    return scale_layouts.transform_k_grouped_sf(
        sf,
        mn,
        k,
        recipe,
        is_sfa=is_sfa,
        psum_layout=psum_layout,
        alignment=alignment,
        convert=backend.convert_scales_within_k_groups,
        place=place,
        pack=backend.words_of_scale_bytes,
    )


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """Return `x` rounded up so that x elements of `element_size` bytes fill a multiple of 16 bytes."""
    return scale_layouts.get_tma_aligned_size(x, element_size)


def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """Return float32 scales [.., mn, blocks] MN-major with a pitch of a multiple of 16 bytes; no copy if they are so."""
    return scale_layouts.get_mn_major_tma_aligned_tensor(sf)


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: Tensor, psum_layout: Tensor | None = None) -> Tensor:
    """Return float32 scales [.., mn, blocks] packed as int32 [.., mn, ceil(blocks/4)], MN-major, pitch of 16 bytes.

    Args:
        sf: float32 powers of two, one row per row of the operand.
        psum_layout: int32 [num_groups] group ends; rows in gaps are not read and become 0 (2-D contiguous `sf` only).

    Raises:
        InvalidArgumentError: a scale is not a power of two (its position is named), or the shape is wrong.
    """
    return scale_layouts.get_mn_major_tma_aligned_packed_ue8m0_tensor(
        sf, psum_layout, alignment=get_mk_alignment_for_contiguous_layout()
    )


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Tensor,
    grouped_layout: Tensor,
    ks_cpu: Sequence[int] | None,
    gran_k: int,
    k_alignment: int,
    use_psum_layout: bool = False,
) -> Tensor:
    """Return k-grouped float32 scales [sum_blocks, mn] packed as int32 [sum_words, mn], each group on a new word row.

    Args:
        sf: float32 powers of two, contiguous, K first.
        grouped_layout: int32 [num_groups], sizes along K, or group ends with `use_psum_layout`.
        ks_cpu: group sizes on the host; None or empty only with `use_psum_layout` (then an upper bound of rows).
        gran_k: 32 or 128.
        k_alignment: alignment of groups along K.
        use_psum_layout: whether `grouped_layout` holds ends.
    """
    return scale_layouts.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
        sf, grouped_layout, ks_cpu, gran_k, k_alignment, use_psum_layout
    )
