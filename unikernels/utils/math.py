"""Integer rounding and the casts, gathered under the name DeepGEMM callers know (``deep_gemm.utils.math``).

The casts themselves live in `fp8_casts`, `fp4_casts` and `ue8m0`.
"""

from __future__ import annotations

from .fp4_casts import (
    cast_back_from_fp4,
    decode_fp4,
    encode_fp4,
    per_token_cast_to_fp4,
    transpose_packed_fp4,
)
from .fp8_casts import (
    cast_back_from_fp8,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_token_cast_to_fp8,
    requantize_to_ue8m0,
    saturating_cast_to_fp8,
)
from .ue8m0 import (
    ceil_to_ue8m0,
    pack_ue8m0_to_int,
    pack_ue8m0_to_int16,
    unpack_ue8m0_from_int,
    unpack_ue8m0_from_int16,
)

__all__ = [
    "align",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "ceil_div",
    "ceil_to_ue8m0",
    "decode_fp4",
    "encode_fp4",
    "pack_ue8m0_to_int",
    "pack_ue8m0_to_int16",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "requantize_to_ue8m0",
    "saturating_cast_to_fp8",
    "transpose_packed_fp4",
    "unpack_ue8m0_from_int",
    "unpack_ue8m0_from_int16",
]


def ceil_div(x: int, y: int) -> int:
    """Return ceil(x / y) for integers.

    >>> ceil_div(129, 128)
    2

    Contract: DeepGEMM 2.8.2, ``utils.ceil_div``.
    """
    return -(-x // y)


def align(x: int, y: int) -> int:
    """Return the smallest multiple of y that is >= x.

    >>> align(129, 128)
    256

    Contract: DeepGEMM 2.8.2, ``utils.align``.
    """
    return ceil_div(x, y) * y
