"""What the casts share: argument checks, block maxima, and scales from maxima.

Private to the casts of this package; `fp8_casts` and `fp4_casts` hold the public functions. The treatment of NaN and
infinity (see `unikernels.utils`) is decided here, once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from .ue8m0 import ceil_to_ue8m0, unpack_ue8m0_from_int

#: Smallest block maximum: keeps the scale of an all-zero block finite and positive (contract 3.11).
AMAX_FLOOR = 1e-4

_FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def checked_matrix(x: Tensor, caller: str, name: str = "x") -> Tensor:
    """Return a [m, n] floating input as float32, or refuse it."""
    if not isinstance(x, Tensor) or x.dim() != 2:
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InvalidArgumentError(f"{caller}: {name} has {got}, expected a matrix [m, n]. Flatten batches first.")
    return checked_float(x, caller, name)


def checked_float(x: Tensor, caller: str, name: str = "x") -> Tensor:
    """Return a floating input as float32 with infinities as the largest finite values, or refuse it."""
    if x.dtype not in _FLOAT_DTYPES:
        raise InvalidArgumentError(
            f"{caller}: {name} has dtype {x.dtype}, expected bfloat16, float16, float32 or float64 values to quantise. "
            f"Values that are quantised already must be cast back first."
        )
    largest = torch.finfo(torch.float32).max
    return x.float().clamp(-largest, largest)  # keeps NaN


def check_granularity(gran_k: int, caller: str) -> None:
    """Refuse a block size that is not a positive integer."""
    if isinstance(gran_k, bool) or not isinstance(gran_k, int) or gran_k <= 0:
        raise InvalidArgumentError(f"{caller}: gran_k is {gran_k!r}, expected a positive number of elements per scale.")


def check_packing(use_ue8m0: bool, use_packed_ue8m0: bool, caller: str) -> None:
    """Refuse packed scales that are not powers of two."""
    if use_packed_ue8m0 and not use_ue8m0:
        raise InvalidArgumentError(
            f"{caller}: use_packed_ue8m0=True with use_ue8m0=False. Packed words hold exponents only, so the scales "
            f"must be powers of two: pass use_ue8m0=True as well."
        )


def block_amax(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return max |x| over `dims` (kept with size 1), ignoring NaN, at least AMAX_FLOOR."""
    if x.numel() == 0:  # amax refuses to reduce an empty dimension
        shape = [1 if dim in dims else size for dim, size in enumerate(x.shape)]
        return torch.full(shape, AMAX_FLOOR, dtype=torch.float32, device=x.device)
    magnitude = x.abs().nan_to_num_(nan=0.0)
    # amax over no dimension would reduce all of them.
    return (magnitude.amax(dim=dims, keepdim=True) if dims else magnitude).clamp_(min=AMAX_FLOOR)


def scale_of(amax: Tensor, format_max: float, use_ue8m0: bool) -> Tensor:
    """Return amax / format_max in float32, raised to a power of two on request."""
    # Dividing by a tensor: for a Python number CUDA multiplies by the reciprocal, which is one ulp off now and then.
    sf = amax / torch.full((), format_max, dtype=torch.float32, device=amax.device)
    return ceil_to_ue8m0(sf) if use_ue8m0 else sf


def pad_to_blocks(x: Tensor, gran_m: int, gran_k: int) -> Tensor:
    """Return x as [mb, gran_m, nb, gran_k], zero-padded."""
    m, n = x.shape
    mb, nb = -(-m // gran_m), -(-n // gran_k)
    if (mb * gran_m, nb * gran_k) != (m, n):
        x = torch.nn.functional.pad(x, (0, nb * gran_k - n, 0, mb * gran_m - m))
    return x.reshape(mb, gran_m, nb, gran_k)


def from_blocks(blocks: Tensor, m: int, n: int) -> Tensor:
    """Undo `pad_to_blocks`: [mb, gran_m, nb, gran_k] to a contiguous [m, n]."""
    mb, gran_m, nb, gran_k = blocks.shape
    return blocks.reshape(mb * gran_m, nb * gran_k)[:m, :n].contiguous()


def column_scales(sf: Tensor, m: int, n: int, gran_k: int, use_packed_ue8m0: bool, caller: str) -> Tensor:
    """Return the float32 scale of each of n columns from [m, ceil(n / gran_k)] scales or their packed words."""
    num_blocks = -(-n // gran_k)
    if use_packed_ue8m0:
        expected, dtype, form = (m, -(-num_blocks // 4)), torch.int32, "packed int32"
    else:
        expected, dtype, form = (m, num_blocks), torch.float32, "float32"
    if tuple(sf.shape) != expected or sf.dtype != dtype:
        raise InvalidArgumentError(
            f"{caller}: sf has shape {tuple(sf.shape)} and dtype {sf.dtype}, expected {expected} and {dtype}: {form} "
            f"scales of {m} rows, one per {gran_k} of {n} columns (use_packed_ue8m0={use_packed_ue8m0})."
        )
    if use_packed_ue8m0:
        sf = unpack_ue8m0_from_int(sf)[:, :num_blocks]
        sf = sf.masked_fill(sf.isinf(), torch.nan)  # byte 255 is NaN
    return sf.repeat_interleave(gran_k, dim=1)[:, :n]
