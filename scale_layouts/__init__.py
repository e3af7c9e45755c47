"""Physical layouts of block scales: what a scale tensor is, conversions between the layouts, and their checks.

Imports torch and `unikernels.errors` only; which backend wants which layout is decided elsewhere.
"""

from .checks import normalize_scales
from .convert import convert_scales, is_canonical, masked_valid_rows, psum_valid_rows
from .decode import decode_scales, expand_scales, is_power_of_two, scale_exponents
from .formats import ScaleFormat, Scales, format_of

__all__ = [
    "ScaleFormat",
    "Scales",
    "convert_scales",
    "decode_scales",
    "expand_scales",
    "format_of",
    "is_canonical",
    "is_power_of_two",
    "masked_valid_rows",
    "normalize_scales",
    "psum_valid_rows",
    "scale_exponents",
]
