"""Reading scale tensors: as float32 values, as UE8M0 exponents, broadcast over rows; and the power-of-two check.

Nothing here changes a layout (convert.py) or checks a shape a user passed (checks.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from unikernels.errors import InvalidArgumentError

from .formats import ScaleFormat, Scales
from .native_packing import transcode


def decode_scales(scales: Scales) -> Tensor:
    """Return the scales as numbers: out[.., i, j] = scale of block (i, j).

    A UE8M0 byte e gives 2^(e - 127): 0 gives 2^-127 and 255 gives NaN. Float32 scales are returned as they are, without
    a copy, whatever they hold.

    Returns:
        float32 [.., ceil(mn / gran_mn), ceil(k / gran_k)]; contiguous if decoded.
    Contract: DeepGEMM 2.8.2, UE8M0 with byte 0 read as in MX arithmetic.
    """
    if scales.format is ScaleFormat.FP32:
        return scales.data
    return _unpacked(scales, torch.float32)


def scale_exponents(scales: Scales, *, valid_rows: Tensor | None = None, name: str = "scales") -> Tensor:
    """Return e with scale = 2^(e - 127) for every block.

    Args:
        valid_rows: bool [.., ceil(mn / gran_mn)]; scale rows that are False are not read and give 0.
        name: what messages call the tensor.

    Returns:
        uint8 [.., ceil(mn / gran_mn), ceil(k / gran_k)], contiguous.
    Raises:
        InvalidArgumentError: a float32 scale is negative, infinite, NaN or no power of two; the first such position
            and its value are named. Zero and 2^-127 both give 0.
    """
    return _unpacked(scales, torch.uint8, valid_rows, name)


def expand_scales(scales: Scales, *, along_k: bool = False) -> Tensor:
    """Return the scale of every row: out[.., i, j] = scale of block (i // gran_mn, j).

    Args:
        along_k: also repeat along K, so that `payload * out` is the dequantised matrix.

    Returns:
        float32 [.., mn, ceil(k / gran_k)], or [.., mn, k] with `along_k`.
    """
    values = decode_scales(scales)
    if scales.gran_mn > 1:
        values = values.index_select(-2, torch.arange(scales.mn, device=values.device) // scales.gran_mn)
    if along_k:
        values = values.index_select(-1, torch.arange(scales.k, device=values.device) // scales.gran_k)
    return values


def is_power_of_two(scales: Scales) -> bool:
    """Return whether every scale can be stored as UE8M0 without changing its value (zero counts, as byte 0)."""
    if scales.format is not ScaleFormat.FP32:
        return True
    return transcode(scales.data, scales.num_k_blocks, None, 0) < 0


def refuse_bad_scale(source: Tensor, index: int, name: str) -> None:
    """Raise InvalidArgumentError for the scale at row-major `index` of float32 `source`; do nothing if it is -1."""
    if index < 0:
        return
    position = []
    for size in reversed(source.shape):
        index, place = divmod(index, size)
        position.append(place)
    position.reverse()
    value = float(source[tuple(position)])
    raise InvalidArgumentError(
        f"{name}[{', '.join(map(str, position))}] = {value!r} cannot be stored as a UE8M0 exponent, expected a power "
        "of two from 2^-127 to 2^127: changing the scale alone would change payload x scale.\n"
        "  Requantise the payload together with its scales (per_token_cast_to_fp8, per_block_cast_to_fp8, .. with "
        "use_ue8m0=True), or use a backend that takes float32 scales."
    )


def _unpacked(scales: Scales, dtype: torch.dtype, valid_rows: Tensor | None = None, name: str = "scales") -> Tensor:
    shape = (*scales.leading_shape, scales.num_mn_blocks, scales.num_k_blocks)
    out = torch.empty(shape, dtype=dtype, device=scales.data.device)
    bad = transcode(scales.data, shape[-1], out, shape[-1], valid_rows=valid_rows)
    refuse_bad_scale(scales.data, bad, name)
    return out
