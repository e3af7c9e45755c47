"""Casts between float matrices and block-scaled E4M3: per token, per channel, per block, over chosen dimensions.

Plain torch on any device; the definition that every backend's own quantisation is compared with. FP4 lives in
`fp4_casts`, packing of scales in `ue8m0`; NaN and infinity are treated as `unikernels.utils` documents.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from .ue8m0 import ceil_to_ue8m0, pack_padded_exponents

#: Largest finite E4M3 value.
E4M3_MAX = 448.0


def saturating_cast_to_fp8(x: Tensor) -> Tensor:
    """Return x rounded to nearest-even E4M3, with |x| > 448 (also inf) as +-448 and NaN as NaN.

    Above 464 the bare torch conversion gives NaN on some torch versions and devices and saturates on others.
    """
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def _quantize(x: Tensor, reduced: tuple[int, ...], use_ue8m0: bool) -> tuple[Tensor, Tensor]:
    """Return (E4M3 of x, scales with the reduced dims kept as 1)."""
    sf = scale_of(block_amax(x, reduced), E4M3_MAX, use_ue8m0)
    return saturating_cast_to_fp8(x * sf.reciprocal()), sf


def per_token_cast_to_fp8(
    x: Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Quantise each run of `gran_k` elements of a row: sf = max(max|x|, 1e-4) / 448, data = e4m3(x * (1 / sf)).

    Args:
        x: [m, n] bfloat16, float16, float32 or float64. A last run shorter than gran_k counts as zero-padded.
        use_ue8m0: raise each scale to the next power of two.
        gran_k: elements per scale.
        use_packed_ue8m0: return four exponents per int32; needs use_ue8m0. Missing blocks of a last word are 1.0.

    Returns:
        data [m, n] float8_e4m3fn, and sf [m, ceil(n / gran_k)] float32 or [m, ceil(n / gran_k / 4)] int32.

    Raises:
        InvalidArgumentError: x is not a floating matrix, gran_k is not positive, or packing without use_ue8m0.

    >>> data, sf = per_token_cast_to_fp8(torch.full((1, 256), 448.0), use_ue8m0=True)
    >>> data.shape, sf.tolist()
    (torch.Size([1, 256]), [[1.0, 1.0]])

    Contract: DeepGEMM 2.8.2, ``utils.per_token_cast_to_fp8``; NaN and inf as in `unikernels.utils`.
    """
    caller = "per_token_cast_to_fp8"
    check_granularity(gran_k, caller)
    check_packing(use_ue8m0, use_packed_ue8m0, caller)
    x = checked_matrix(x, caller)
    m, n = x.shape
    data, sf = _quantize(pad_to_blocks(x, 1, gran_k), (3,), use_ue8m0)
    sf = sf.reshape(m, -(-n // gran_k))
    return from_blocks(data, m, n), pack_padded_exponents(sf) if use_packed_ue8m0 else sf


def per_channel_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Quantise each run of `gran_k` elements of a column; scales as in `per_token_cast_to_fp8`.

    Args:
        x: [m, n] floating, m a multiple of gran_k.
        use_ue8m0: raise each scale to the next power of two.
        gran_k: rows per scale.

    Returns:
        data [m, n] float8_e4m3fn and sf [m / gran_k, n] float32.

    Raises:
        InvalidArgumentError: x is not a floating matrix, or m is not a multiple of gran_k.

    Contract: DeepGEMM 2.8.2, ``utils.per_channel_cast_to_fp8``.
    """
    caller = "per_channel_cast_to_fp8"
    check_granularity(gran_k, caller)
    x = checked_matrix(x, caller)
    m, n = x.shape
    if m % gran_k:
        raise InvalidArgumentError(
            f"{caller}: x has {m} rows, expected a multiple of gran_k={gran_k}: one scale covers {gran_k} rows of a "
            f"column. Pad x with zero rows."
        )
    data, sf = _quantize(x.reshape(m // gran_k, gran_k, n), (1,), use_ue8m0)
    return data.reshape(m, n), sf.squeeze(1)


def per_block_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Quantise each `gran_k` x `gran_k` block with one scale, computed as in `per_token_cast_to_fp8`.

    Args:
        x: [m, n] floating; blocks that reach over its edges count as zero-padded.
        use_ue8m0: raise each scale to the next power of two.
        gran_k: rows and columns per scale.

    Returns:
        data [m, n] float8_e4m3fn and sf [ceil(m / gran_k), ceil(n / gran_k)] float32.

    Raises:
        InvalidArgumentError: x is not a floating matrix, or gran_k is not positive.

    Contract: DeepGEMM 2.8.2, ``utils.per_block_cast_to_fp8``.
    """
    caller = "per_block_cast_to_fp8"
    check_granularity(gran_k, caller)
    x = checked_matrix(x, caller)
    m, n = x.shape
    data, sf = _quantize(pad_to_blocks(x, gran_k, gran_k), (1, 3), use_ue8m0)
    return from_blocks(data, m, n), sf.reshape(-(-m // gran_k), -(-n // gran_k))


def per_custom_dims_cast_to_fp8(x: Tensor, dims: Sequence[int], use_ue8m0: bool) -> tuple[Tensor, Tensor]:
    """Quantise with one scale per index of the kept dimensions `dims`; the maximum runs over all others.

    Args:
        x: floating, any number of dimensions.
        dims: dimensions that keep their own scales; negative ones count from the end.
        use_ue8m0: raise each scale to the next power of two.

    Returns:
        data of x's shape as float8_e4m3fn, and float32 scales with every dimension of size 1 squeezed away (also a kept
        one, as DeepGEMM does).

    Raises:
        InvalidArgumentError: x is not floating, or a dimension is out of range or named twice.

    Contract: DeepGEMM 2.8.2, ``utils.per_custom_dims_cast_to_fp8``.
    """
    caller = "per_custom_dims_cast_to_fp8"
    x = checked_float(x, caller)
    kept = [dim + x.dim() if dim < 0 else dim for dim in dims]
    if any(not 0 <= dim < x.dim() for dim in kept) or len(set(kept)) != len(kept):
        raise InvalidArgumentError(
            f"{caller}: dims is {tuple(dims)}, expected distinct dimensions of x with shape {tuple(x.shape)}."
        )
    data, sf = _quantize(x, tuple(dim for dim in range(x.dim()) if dim not in kept), use_ue8m0)
    return data, sf.squeeze()


def cast_back_from_fp8(x_fp8: Tensor, sf: Tensor, gran_k: int = 128, use_packed_ue8m0: bool = False) -> Tensor:
    """Return float32 value * sf[row, column // gran_k]: the inverse of `per_token_cast_to_fp8`.

    Args:
        x_fp8: [m, n] float8_e4m3fn.
        sf: [m, ceil(n / gran_k)] float32, or [m, ceil(n / gran_k / 4)] int32 with use_packed_ue8m0.
        gran_k: elements per scale.
        use_packed_ue8m0: sf holds packed exponents; byte 0 counts as 0.0 and byte 255 as NaN.

    Raises:
        InvalidArgumentError: shapes or dtypes do not fit each other.

    Contract: DeepGEMM 2.8.2, ``utils.cast_back_from_fp8``.
    """
    caller = "cast_back_from_fp8"
    check_granularity(gran_k, caller)
    _check_payload(x_fp8, caller, num_dims=(2,))
    m, n = x_fp8.shape
    return x_fp8.float() * column_scales(sf, m, n, gran_k, use_packed_ue8m0, caller)


def _check_payload(x_fp8: Tensor, caller: str, num_dims: tuple[int, ...]) -> None:
    if x_fp8.dtype != torch.float8_e4m3fn or x_fp8.dim() not in num_dims:
        raise InvalidArgumentError(
            f"{caller}: x_fp8 has shape {tuple(x_fp8.shape)} and dtype {x_fp8.dtype}, expected "
            f"{' or '.join(map(str, num_dims))} dimensions of torch.float8_e4m3fn."
        )


def requantize_to_ue8m0(
    x_fp8: Tensor, sf: Tensor, gran_k: int = 128, gran_mn: int | None = None
) -> tuple[Tensor, Tensor]:
    """Move (payload, float32 scales) to power-of-two scales, keeping payload * scale.

    sf' = ceil_to_ue8m0(sf), payload' = e4m3(payload * (sf / sf')). The ratio is in (1/2, 1], so nothing saturates; the
    payload is rounded once more (about 4 %). Scales that are powers of two already keep their payload bit for bit.

    Args:
        x_fp8: [mn, k] or [groups, mn, k] float8_e4m3fn.
        sf: [..., ceil(mn / gran_mn), ceil(k / gran_k)] float32, finite and >= 0.
        gran_k: elements along K per scale.
        gran_mn: rows per scale; None means 1 if sf has mn rows, else 128.

    Returns:
        a new payload of x_fp8's shape and new float32 scales of sf's shape.

    Raises:
        InvalidArgumentError: shapes or dtypes do not fit, or a scale is negative, NaN or infinite.

    >>> ones = torch.ones(128, 128).to(torch.float8_e4m3fn)
    >>> payload, sf = requantize_to_ue8m0(ones, torch.tensor([[1.5]]))
    >>> payload.float()[0, 0].item(), sf.item()
    (0.75, 2.0)
    """
    caller = "requantize_to_ue8m0"
    check_granularity(gran_k, caller)
    _check_payload(x_fp8, caller, num_dims=(2, 3))
    *groups, mn, k = x_fp8.shape
    if gran_mn is None:
        gran_mn = 1 if sf.dim() == x_fp8.dim() and sf.size(-2) == mn else 128
    expected = (*groups, -(-mn // gran_mn), -(-k // gran_k))
    if tuple(sf.shape) != expected or sf.dtype != torch.float32:
        raise InvalidArgumentError(
            f"{caller}: sf has shape {tuple(sf.shape)} and dtype {sf.dtype}, expected {expected} torch.float32: one "
            f"scale per {gran_mn} x {gran_k} block of x_fp8 {tuple(x_fp8.shape)} (gran_mn={gran_mn}, gran_k={gran_k})."
        )
    is_good = sf.isfinite() & (sf >= 0)
    if not bool(is_good.all()):
        position = tuple((~is_good).nonzero()[0].tolist())
        raise InvalidArgumentError(
            f"{caller}: sf{list(position)} is {sf[position].item()!r}, expected a finite scale >= 0."
        )
    new_sf = ceil_to_ue8m0(sf)
    ratio = (sf / new_sf).repeat_interleave(gran_mn, dim=-2)[..., :mn, :].repeat_interleave(gran_k, dim=-1)[..., :k]
    return saturating_cast_to_fp8(x_fp8.float() * ratio), new_sf
