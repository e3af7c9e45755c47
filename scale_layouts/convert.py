"""Conversion of scales to the canonical physical layout of a format, and the row masks of grouped layouts.

K-grouped scale tensors, whose rows do not follow one matrix, are in grouped.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unikernels.errors import InvalidArgumentError

from .decode import refuse_bad_scale, scale_exponents
from .formats import ScaleFormat, Scales, align
from .native_packing import transcode

PACKED_GRAN_K = (32, 128)
ASCEND_GRAN_K = 32
_TMA_BYTES = 16


def psum_valid_rows(psum_layout: Tensor, mn: int, alignment: int) -> Tensor:
    """Return which of `mn` rows belong to a group: row in [align(end[i-1], alignment), end[i]) for some i.

    Args:
        psum_layout: int32 [num_groups] end offsets; read on its device, without waiting for it.

    Returns:
        bool [mn].
    Contract: DeepGEMM 2.8.2, psum layout.
    """
    ends = psum_layout.to(torch.int64)
    starts = torch.zeros_like(ends)
    starts[1:] = -(-ends[:-1] // alignment) * alignment
    # +1 at every start, -1 at every end: the running sum is 1 inside a group. Empty groups (end <= start) are left out.
    ends = torch.maximum(ends, starts).clamp(max=mn)
    starts = starts.clamp(max=mn)
    steps = torch.zeros(mn + 1, dtype=torch.int32, device=ends.device)
    ones = torch.ones_like(ends, dtype=torch.int32)
    steps.scatter_add_(0, starts, ones).scatter_add_(0, ends, -ones)
    return steps.cumsum(0)[:mn] > 0


def masked_valid_rows(masked_m: Tensor, mn: int) -> Tensor:
    """Return bool [num_groups, mn]: whether a row lies in front of its group's `masked_m`."""
    return torch.arange(mn, device=masked_m.device) < masked_m.reshape(-1, 1)


def is_canonical(scales: Scales) -> bool:
    """Return whether `scales.data` already lies in memory as `convert_scales` to its own format would put it.

    An int32 pitch wider than needed is canonical as long as it is a multiple of 16 bytes (DeepGEMM 2.8.2).
    """
    return _laid_out(scales, scales.gran_k) is not None


def convert_scales(
    scales: Scales,
    scale_format: ScaleFormat,
    *,
    gran_k: int | None = None,
    psum_layout: Tensor | None = None,
    alignment: int | None = None,
    masked_m: Tensor | None = None,
    valid_rows: Tensor | None = None,
    name: str = "sf",
) -> Scales:
    """Return the same scales in the canonical layout of `scale_format`; never a changed value.

    Layouts, for [.., mn, k] with W elements along K:

    * FP32, one scale per row: strides (P * W, 1, P) with P = mn rounded up to 4. With gran_mn > 1 the block scales
      stay as they are (packed ones are decoded, row-major).
    * UE8M0X4_INT32: one row per row of the matrix (block rows are repeated), the same strides, gran_k 32 or 128.
    * UE8M0X2_INT16: one row per row of the matrix, strides (mn * W, 1, mn), gran_k always 32 (128 is repeated 4 times).

    Args:
        scales: any format and strides. Already canonical data is returned without a copy.
        gran_k: granularity of the result; the source's (32 for int16) if None. Coarser than the source is possible
            only where the scales that merge are equal.
        psum_layout, alignment: int32 [num_groups] end offsets and their alignment. Rows in no group are not read and
            become 0 in a packed result.
        masked_m: int32 [num_groups], for [num_groups, mn, k]: the same for rows at or past masked_m[group].
        valid_rows: bool [.., mn]: the same for rows that are False.
        name: what messages call the tensor.
    Raises:
        InvalidArgumentError: a scale that is no power of two meets a packed format, or a granularity cannot be reached.
    Contract: DeepGEMM 2.8.2, scale layouts of SM90, SM100 and Ascend.
    """
    target_gran_k = _target_gran_k(scales, scale_format, gran_k, name)
    if scales.format is scale_format and (scale_format is ScaleFormat.FP32 or scales.gran_mn == 1):
        data = _laid_out(scales, target_gran_k)
        if data is not None:
            return scales if data is scales.data else _with_data(scales, data)
    if scale_format is ScaleFormat.FP32 and scales.format is ScaleFormat.FP32 and scales.gran_k == target_gran_k:
        return _with_data(scales, mn_major_tma_aligned(scales.data))
    if psum_layout is not None:
        valid_rows = psum_valid_rows(psum_layout, scales.mn, 128 if alignment is None else alignment)
        valid_rows = valid_rows.expand(*scales.leading_shape, scales.mn)
    elif masked_m is not None:
        valid_rows = masked_valid_rows(masked_m, scales.mn)
    if scales.gran_k < target_gran_k:
        scales = _coarser(scales, scale_format, target_gran_k, valid_rows, name)
    if scale_format is ScaleFormat.FP32:
        return _to_float(scales, target_gran_k)
    return _to_packed(scales, scale_format, target_gran_k, valid_rows, name)


def empty_mn_major(
    leading: tuple[int, ...], mn: int, num_words: int, pitch: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return a tensor [.., mn, num_words] with strides (pitch * num_words, 1, pitch); pitch padding is zero."""
    columns = torch.empty((*leading, num_words, pitch), dtype=dtype, device=device)
    if pitch == mn:
        return columns.transpose(-1, -2)
    columns[..., mn:] = 0
    return columns.transpose(-1, -2)[..., :mn, :]


def mn_major_tma_aligned(sf: Tensor) -> Tensor:
    """Return [.., mn, columns] with strides (P * columns, 1, P), P = mn rounded up to 16 bytes; no copy if it is so."""
    pitch = align(sf.shape[-2], _TMA_BYTES // sf.element_size())
    data = _restrided(sf, pitch)
    if data is None:
        data = empty_mn_major(tuple(sf.shape[:-2]), sf.shape[-2], sf.shape[-1], pitch, sf.dtype, sf.device)
        data.copy_(sf)
    return data


def _with_data(scales: Scales, data: Tensor) -> Scales:
    return Scales(data, scales.format, scales.gran_mn, scales.gran_k, scales.mn, scales.k)


def _target_gran_k(scales: Scales, scale_format: ScaleFormat, gran_k: int | None, name: str) -> int:
    if gran_k is None:
        gran_k = ASCEND_GRAN_K if scale_format is ScaleFormat.UE8M0X2_INT16 else scales.gran_k
    allowed: tuple[int, ...] = PACKED_GRAN_K
    if scale_format is ScaleFormat.UE8M0X2_INT16:
        allowed = (ASCEND_GRAN_K,)
    if scale_format is not ScaleFormat.FP32 and gran_k not in allowed:
        raise InvalidArgumentError(
            f"{name}: {scale_format.label} scales cannot have granularity {gran_k} along K, expected "
            f"{' or '.join(map(str, allowed))}.\n  Pass gran_k, or quantise with gran_k={allowed[0]}."
        )
    if max(gran_k, scales.gran_k) % min(gran_k, scales.gran_k):
        raise InvalidArgumentError(
            f"{name}: scales of granularity {scales.gran_k} along K cannot become granularity {gran_k}, expected one "
            "to divide the other.\n  Quantise again with the wanted gran_k."
        )
    return gran_k


def _restrided(data: Tensor, pitch: int, *, any_wider: bool = False) -> Tensor | None:
    """Return `data` with strides (pitch * words, 1, pitch) if its memory is like that, else None.

    The stride of an axis of length 1 says nothing; there the canonical one is put in, without a copy.
    """
    num_words = data.shape[-1]
    if any_wider and num_words > 1:
        actual = data.stride(-1)
        if actual > pitch and actual % (_TMA_BYTES // data.element_size()) == 0:
            pitch = actual
    expected = [1, pitch]
    step = pitch * num_words
    for size in reversed(data.shape[:-2]):
        expected.insert(0, step)
        step *= size
    actual_strides = data.stride()
    if list(actual_strides) == expected or not data.numel():
        return data
    for size, actual, wanted in zip(data.shape, actual_strides, expected, strict=True):
        if size > 1 and actual != wanted:
            return None
    return data.as_strided(data.shape, expected)


def _laid_out(scales: Scales, gran_k: int) -> Tensor | None:
    """Return the data of `scales`, with canonical strides, if they are canonical for their format and `gran_k`."""
    data = scales.data
    if scales.gran_k != gran_k:
        return None
    if scales.format is ScaleFormat.FP32:
        return data if scales.gran_mn != 1 else _restrided(data, align(scales.mn, 4))
    if scales.gran_mn != 1:
        return None
    if scales.format is ScaleFormat.UE8M0X4_INT32:
        return _restrided(data, align(scales.mn, 4), any_wider=True) if gran_k in PACKED_GRAN_K else None
    return _restrided(data, scales.mn) if gran_k == ASCEND_GRAN_K else None


def _coarser(scales: Scales, scale_format: ScaleFormat, gran_k: int, valid_rows: Tensor | None, name: str) -> Scales:
    """Return scales of granularity `gran_k`, merging equal ones; `data` is float32 or one exponent a byte."""
    factor = gran_k // scales.gran_k
    if valid_rows is not None and scales.gran_mn > 1:
        valid_rows = _valid_blocks(valid_rows, scales.gran_mn)
    if scales.format is ScaleFormat.FP32 and scale_format is ScaleFormat.FP32:
        values = scales.data
    else:
        values = scale_exponents(scales, valid_rows=valid_rows, name=name)
    merged = values[..., ::factor]
    differs = values != merged.repeat_interleave(factor, -1)[..., : values.shape[-1]]
    if valid_rows is not None:
        differs &= valid_rows.unsqueeze(-1)
    if bool(differs.any()):
        position = differs.nonzero()[0].tolist()
        raise InvalidArgumentError(
            f"{name}{position} differs from the first scale of its run of {factor} along K; going from granularity "
            f"{scales.gran_k} to {gran_k} needs equal scales in every run.\n"
            f"  Keep gran_k={scales.gran_k}, or quantise again with gran_k={gran_k}."
        )
    return Scales(merged, scales.format, scales.gran_mn, gran_k, scales.mn, scales.k)


def _valid_blocks(valid_rows: Tensor, gran_mn: int) -> Tensor:
    padding = -valid_rows.shape[-1] % gran_mn
    padded = torch.nn.functional.pad(valid_rows, (0, padding))
    return padded.reshape(*valid_rows.shape[:-1], padded.shape[-1] // gran_mn, gran_mn).any(-1)


def _to_float(scales: Scales, gran_k: int) -> Scales:
    rows, repeat = scales.num_mn_blocks, scales.gran_k // gran_k
    num_blocks = -(-scales.k // gran_k)
    leading, device = scales.leading_shape, scales.data.device
    if scales.gran_mn == 1:
        out = empty_mn_major(leading, rows, num_blocks, align(rows, 4), torch.float32, device)
    else:
        out = torch.empty((*leading, rows, num_blocks), dtype=torch.float32, device=device)
    if scales.data.dtype == torch.float32:
        out.copy_(scales.data.repeat_interleave(repeat, -1)[..., :num_blocks])
    else:
        transcode(scales.data, scales.num_k_blocks, out, num_blocks, k_repeat=repeat)
    return Scales(out, ScaleFormat.FP32, scales.gran_mn, gran_k, scales.mn, scales.k)


def _to_packed(scales: Scales, scale_format: ScaleFormat, gran_k: int, valid_rows: Tensor | None, name: str) -> Scales:
    num_blocks = -(-scales.k // gran_k)
    num_words = -(-num_blocks // scale_format.per_word)
    pitch = align(scales.mn, 4) if scale_format is ScaleFormat.UE8M0X4_INT32 else scales.mn
    data = scales.data
    out = empty_mn_major(scales.leading_shape, scales.mn, num_words, pitch, scale_format.dtype, data.device)
    bad = transcode(
        data,
        scales.num_k_blocks,
        out,
        num_blocks,
        gran_mn=scales.gran_mn,
        k_repeat=scales.gran_k // gran_k,
        valid_rows=valid_rows,
    )
    refuse_bad_scale(data, bad, name)
    return Scales(out, scale_format, 1, gran_k, scales.mn, scales.k)
