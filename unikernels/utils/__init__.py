"""Quantisation casts, UE8M0 packing and small distributed tools: DeepGEMM's ``deep_gemm.utils``, in plain torch.

Works on every device and needs no backend. Kernels' scale layouts live in `unikernels.scale_layouts`, comparison and
timing in `unikernels.testing`.

NaN, infinity and overflow are treated alike by every cast here:

* A finite value beyond the format's maximum saturates (448 for E4M3, 6 for E2M1).
* +-inf counts as +-(largest float32): the scale stays finite, and the payload is what that number gets.
* NaN does not enter the block maximum, so other values of its block are unaffected. In E4M3 it stays NaN; E2M1 has no
  NaN, so the block's scale becomes NaN (packed: byte 255) and the whole block decodes to NaN.
* An all-zero block gets the scale of the maximum 1e-4: payload zero, scale finite and positive.
"""

from __future__ import annotations

from typing import Any

from . import dist, layout, math
from .dist import init_dist, uneven_all_gather
from .math import (
    align,
    cast_back_from_fp4,
    cast_back_from_fp8,
    ceil_div,
    ceil_to_ue8m0,
    decode_fp4,
    encode_fp4,
    pack_ue8m0_to_int,
    pack_ue8m0_to_int16,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
    requantize_to_ue8m0,
    saturating_cast_to_fp8,
    transpose_packed_fp4,
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
    "dist",
    "encode_fp4",
    "init_dist",
    "layout",
    "math",
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
    "uneven_all_gather",
    "unpack_ue8m0_from_int",
    "unpack_ue8m0_from_int16",
]


def __getattr__(name: str) -> Any:
    """Offer the layout functions here too, as DeepGEMM does."""
    if name in layout.__all__:
        return getattr(layout, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
