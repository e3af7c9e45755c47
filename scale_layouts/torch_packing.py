"""Scale bytes in plain torch, for devices other than the CPU and for installations without the native packer.

`transcode` here and in native_packing.py do the same; layouts and argument checks are not known at this level.
"""

from __future__ import annotations

import torch
from torch import Tensor

# float32 bit patterns; torch has no unsigned constants, so sign | mantissa is written as a negative number.
SIGN_AND_MANTISSA = -0x7F800001
INFINITY = 0x7F800000
NAN = 0x7FC00000
TWO_POW_MINUS_127 = 0x00400000  # subnormal: UE8M0 byte 0


def exponents_of_floats(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return (UE8M0 bytes as int32, whether each value has one) of float32 `values`; a value without one reads 255."""
    bits = values.view(torch.int32)
    is_exact = ((bits & SIGN_AND_MANTISSA) == 0) & (bits != INFINITY)
    is_exact |= bits == TWO_POW_MINUS_127
    return torch.where(is_exact, bits >> 23, 255), is_exact


def floats_of_exponents(exponents: Tensor) -> Tensor:
    """Return 2^(e - 127) as float32; 0 gives the subnormal 2^-127 and 255 gives NaN."""
    e = exponents.to(torch.int32)
    bits = torch.where(e == 0, TWO_POW_MINUS_127, e << 23)
    return torch.where(e == 255, NAN, bits).to(torch.int32).view(torch.float32)


def unpacked_bytes(words: Tensor, num_blocks: int) -> Tensor:
    """Return the first `num_blocks` bytes along the last axis of integer `words`, as int32."""
    per_word = words.element_size()
    if per_word == 1:
        return words[..., :num_blocks].to(torch.int32)
    shifts = torch.arange(0, 8 * per_word, 8, dtype=torch.int32, device=words.device)
    split = (words.to(torch.int32).unsqueeze(-1) >> shifts) & 0xFF
    return split.flatten(-2)[..., :num_blocks]


def packed_words(exponents: Tensor, dtype: torch.dtype, num_words: int) -> Tensor:
    """Return `num_words` little-endian words of `dtype` along the last axis, missing bytes being 0."""
    per_word = dtype.itemsize
    padded = torch.zeros((*exponents.shape[:-1], num_words * per_word), dtype=torch.uint8, device=exponents.device)
    padded[..., : exponents.shape[-1]] = exponents.to(torch.uint8)
    if not padded.numel():
        return torch.empty((*exponents.shape[:-1], num_words), dtype=dtype, device=exponents.device)
    return padded.view(dtype)


def transcode(
    source: Tensor,
    num_blocks: int,
    sink: Tensor | None,
    sink_blocks: int,
    *,
    gran_mn: int = 1,
    k_repeat: int = 1,
    valid_rows: Tensor | None = None,
) -> int:
    """Write the scales of `source` into `sink`; see native_packing.transcode."""
    if source.dtype == torch.float32:
        exponents, is_exact = exponents_of_floats(source)
    else:
        exponents, is_exact = unpacked_bytes(source, num_blocks), None
    num_rows = source.shape[-2]
    if gran_mn > 1 and sink is not None:
        rows = torch.arange(sink.shape[-2], device=source.device) // gran_mn
        exponents = exponents.index_select(-2, rows)
        is_exact = None if is_exact is None else is_exact.index_select(-2, rows)
    if valid_rows is not None:
        row_mask = valid_rows.unsqueeze(-1)
        exponents = torch.where(row_mask, exponents, 0)
        is_exact = None if is_exact is None else is_exact | ~row_mask
    if is_exact is not None:
        bad = _first_false(is_exact)
        if bad >= 0:
            group, row, block = _unravel(bad, is_exact.shape[-2], num_blocks)
            return (group * num_rows + row // (gran_mn if sink is not None else 1)) * num_blocks + block
    if sink is not None:
        _store(exponents, sink, sink_blocks, k_repeat)
    return -1


def _store(exponents: Tensor, sink: Tensor, sink_blocks: int, k_repeat: int) -> None:
    if k_repeat > 1:
        columns = torch.arange(sink_blocks, device=exponents.device) // k_repeat
        exponents = exponents.index_select(-1, columns)
    else:
        exponents = exponents[..., :sink_blocks]
    if sink.dtype == torch.float32:
        sink.copy_(floats_of_exponents(exponents))
    else:
        sink.copy_(packed_words(exponents, sink.dtype, sink.shape[-1]))


def _first_false(mask: Tensor) -> int:
    # Reading the answer back waits for the device, which a capturing stream cannot do: there, bad scales stay marked
    # 255 (NaN), so that they cannot pass for numbers.
    if mask.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return -1
    if bool(mask.all()):
        return -1
    return int((~mask).flatten().to(torch.int8).argmax())


def _unravel(index: int, num_rows: int, num_blocks: int) -> tuple[int, int, int]:
    row_index, block = divmod(index, num_blocks)
    group, row = divmod(row_index, num_rows)
    return group, row, block
