"""Casts between float matrices and block-scaled E2M1 (FP4), two values per byte, the even column in the low nibble.

Plain torch on any device. Rounding is to nearest, ties to the even code (DeepGEMM 2.8.2). E4M3 lives in `fp8_casts`,
packing of scales in `ue8m0`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from .operands import (
    block_amax,
    check_granularity,
    check_packing,
    checked_float,
    checked_matrix,
    column_scales,
    from_blocks,
    pad_to_blocks,
    scale_of,
)
from .ue8m0 import pack_padded_exponents

#: Value of each E2M1 code without its sign bit.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: Largest E2M1 value.
E2M1_MAX = 6.0


#: Code i starts right above entry i - 1, a midpoint. A tie goes to the even code: at every second midpoint that is the
#: upper one, so the entry is the float32 just below it.
_THRESHOLDS = (0.25, 0.75 - 2**-24, 1.25, 1.75 - 2**-23, 2.5, 3.5 - 2**-22, 5.0)


def _codes(x: Tensor) -> Tensor:
    """Return the E2M1 code of each float32 as uint8; NaN gives the code of 6, a zero result has no sign."""
    thresholds = torch.tensor(_THRESHOLDS, dtype=torch.float32, device=x.device)
    code = torch.bucketize(x.abs().contiguous(), thresholds, out_int32=True).to(torch.uint8)
    return code | (((x < 0) & (code != 0)).to(torch.uint8) << 3)


def _pair(codes: Tensor) -> Tensor:
    """Pack [..., 2 * n] codes to [..., n] int8, the even index in the low nibble."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).view(torch.int8)


def _nibbles(packed: Tensor, caller: str) -> Tensor:
    """Return [..., 2 * n] uint8 codes of [..., n] bytes."""
    float4 = getattr(torch, "float4_e2m1fn_x2", None)
    if packed.dtype not in (torch.int8, torch.uint8, float4) or packed.dim() == 0:
        raise InvalidArgumentError(
            f"{caller}: got dtype {packed.dtype} and shape {tuple(packed.shape)}, expected bytes of two E2M1 values: "
            f"torch.int8, torch.uint8 or torch.float4_e2m1fn_x2 with at least one dimension."
        )
    codes = packed.view(torch.uint8)
    return torch.stack((codes & 0xF, codes >> 4), dim=-1).flatten(-2)


def encode_fp4(x: Tensor) -> Tensor:
    """Round to E2M1, nearest with ties to the even code, and pack two codes per byte, the even index low.

    |x| > 6 (also inf) saturates to 6; a result of zero carries no sign.

    Args:
        x: [..., 2 * n] floating; no NaN, which E2M1 cannot hold.

    Returns:
        [..., n] int8.

    Raises:
        InvalidArgumentError: odd last dimension, a dtype that is not floating, or a NaN (its position is named).

    >>> encode_fp4(torch.tensor([0.5, -6.0])).item() & 0xFF == 0xF1
    True
    """
    x = checked_float(x, "encode_fp4")
    if x.dim() == 0 or x.size(-1) % 2:
        raise InvalidArgumentError(
            f"encode_fp4: x has shape {tuple(x.shape)}, expected an even last dimension: two values share a byte. "
            f"Pad x with a zero column."
        )
    is_nan = x.isnan()
    if bool(is_nan.any()):
        position = is_nan.nonzero()[0].tolist()
        raise InvalidArgumentError(f"encode_fp4: x{position} is NaN, which E2M1 cannot represent. Remove NaN first.")
    return _pair(_codes(x))


def decode_fp4(packed: Tensor) -> Tensor:
    """Return the float32 values of packed E2M1: [..., n] bytes to [..., 2 * n]; code 0x8 (minus zero) gives +0.

    Args:
        packed: int8, uint8 or float4_e2m1fn_x2; the low nibble is the even index.

    Raises:
        InvalidArgumentError: another dtype.

    >>> decode_fp4(torch.tensor([0x31], dtype=torch.uint8)).tolist()
    [0.5, 1.5]
    """
    table = torch.tensor(E2M1_VALUES + tuple(0.0 - value for value in E2M1_VALUES), dtype=torch.float32)
    return table.to(packed.device)[_nibbles(packed, "decode_fp4").int()]


def per_token_cast_to_fp4(
    x: Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Quantise each run of `gran_k` elements of a row: sf = max(max|x|, 1e-4) / 6, data = e2m1(x * (1 / sf)).

    Args:
        x: [m, n] bfloat16, float16, float32 or float64, n even. A last run shorter than gran_k counts as zero-padded.
        use_ue8m0: raise each scale to the next power of two.
        gran_k: elements per scale.
        use_packed_ue8m0: return four exponents per int32; needs use_ue8m0. Missing blocks of a last word are 1.0.

    Returns:
        data [m, n / 2] int8 (low nibble = even column), and sf [m, ceil(n / gran_k)] float32 or
        [m, ceil(n / gran_k / 4)] int32. A block that contains NaN has a NaN scale (byte 255): E2M1 has no NaN.

    Raises:
        InvalidArgumentError: x is not a floating matrix, n is odd, gran_k < 1, or packing without use_ue8m0.

    Contract: DeepGEMM 2.8.2, ``utils.per_token_cast_to_fp4``.
    """
    caller = "per_token_cast_to_fp4"
    check_granularity(gran_k, caller)
    check_packing(use_ue8m0, use_packed_ue8m0, caller)
    x = checked_matrix(x, caller)
    m, n = x.shape
    if n % 2:
        raise InvalidArgumentError(
            f"{caller}: x has {n} columns, expected an even number: two values share a byte. Pad x with a zero column."
        )
    blocks = pad_to_blocks(x, 1, gran_k)
    sf = scale_of(block_amax(blocks, (3,)), E2M1_MAX, use_ue8m0)
    data = _pair(from_blocks(_codes(blocks * sf.reciprocal()), m, n))
    has_nan = blocks.isnan().any(dim=3).reshape(m, -(-n // gran_k))
    # Exponent field 255 with no mantissa packs to byte 255; unpacked scales say NaN outright.
    sf = sf.reshape(has_nan.shape).masked_fill(has_nan, torch.inf if use_packed_ue8m0 else torch.nan)
    return data, pack_padded_exponents(sf) if use_packed_ue8m0 else sf


def transpose_packed_fp4(a: Tensor) -> Tensor:
    """Transpose a packed FP4 matrix: stored [m, n / 2] to stored [n, m / 2], both packed along their last dimension.

    The MN-major form of a K-major operand [mn, k] is the transposed view of the result: stored [mn / 2, k] with strides
    (1, mn / 2).

    Args:
        a: [m, n / 2] int8, uint8 or float4_e2m1fn_x2, m even.

    Returns:
        [n, m / 2] int8, contiguous.

    Raises:
        InvalidArgumentError: a is not a matrix of bytes, or m is odd.

    Contract: DeepGEMM 2.8.2, ``utils.transpose_packed_fp4``.
    """
    if a.dim() != 2 or a.size(0) % 2:
        raise InvalidArgumentError(
            f"transpose_packed_fp4: a has shape {tuple(a.shape)}, expected a matrix with an even number of rows: the "
            f"result packs two rows of a into each byte. Pad a with a zero row."
        )
    return _pair(_nibbles(a, "transpose_packed_fp4").t().contiguous())


def cast_back_from_fp4(packed: Tensor, sf: Tensor, gran_k: int = 128, use_packed_ue8m0: bool = False) -> Tensor:
    """Return float32 value * sf[row, column // gran_k]: the inverse of `per_token_cast_to_fp4`.

    Args:
        packed: [m, n / 2] int8, uint8 or float4_e2m1fn_x2.
        sf: [m, ceil(n / gran_k)] float32, or [m, ceil(n / gran_k / 4)] int32 with use_packed_ue8m0.
        gran_k: elements per scale.
        use_packed_ue8m0: sf holds packed exponents; byte 0 counts as 0.0 and byte 255 as NaN.

    Raises:
        InvalidArgumentError: shapes or dtypes do not fit each other.

    Contract: DeepGEMM 2.8.2, ``utils.cast_back_from_fp4``.
    """
    caller = "cast_back_from_fp4"
    check_granularity(gran_k, caller)
    if packed.dim() != 2:
        raise InvalidArgumentError(f"{caller}: packed has shape {tuple(packed.shape)}, expected a matrix [m, n / 2].")
    values = decode_fp4(packed)
    m, n = values.shape
    return values * column_scales(sf, m, n, gran_k, use_packed_ue8m0, caller)
