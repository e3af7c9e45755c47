"""Physical layouts of block scales: what a scale tensor is, conversions between the layouts, and their checks.

Imports torch and `unikernels.errors` only; which backend wants which layout is decided elsewhere.
"""

from .checks import normalize_scales, words_of_bytes
from .convert import convert_scales, is_canonical, masked_valid_rows, psum_valid_rows
from .decode import decode_scales, expand_scales, is_power_of_two, scale_exponents
from .formats import ScaleFormat, Scales, format_of
from .grouped import (
    KGroups,
    convert_k_grouped_scales,
    k_grouped_exponents,
    k_grouped_scales,
    k_groups,
    place_k_grouped_scales,
)
from .transforms import (
    convert_scales_within_k_groups,
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor,
    get_tma_aligned_size,
    transform_k_grouped_sf,
    transform_sf,
)

__all__ = [
    "KGroups",
    "ScaleFormat",
    "Scales",
    "convert_k_grouped_scales",
    "convert_scales",
    "convert_scales_within_k_groups",
    "decode_scales",
    "expand_scales",
    "format_of",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_tma_aligned_size",
    "is_canonical",
    "is_power_of_two",
    "k_grouped_exponents",
    "k_grouped_scales",
    "k_groups",
    "masked_valid_rows",
    "normalize_scales",
    "place_k_grouped_scales",
    "psum_valid_rows",
    "scale_exponents",
    "transform_k_grouped_sf",
    "transform_sf",
    "words_of_bytes",
]
