"""UE8M0 scales as plain torch: rounding up to powers of two, packing exponents into integer words, and back.

Bit-level semantics only (contract 2.0, 3.11). Physical layouts that kernels consume (strides, alignment, groups) are
the business of `unikernels.scale_layouts`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidArgumentError

#: Exponent byte of 1.0, used to fill words whose last blocks do not exist.
ONE_UE8M0 = 127
#: Exponent byte that UE8M0 reserves for NaN.
NAN_UE8M0 = 255

_MANTISSA_BITS = 23
_MANTISSA_MASK = (1 << _MANTISSA_BITS) - 1
#: Bits of 2^-127, a float32 subnormal: what `float8_e8m0fnu` byte 0 converts to.
_BITS_OF_BYTE_0 = 1 << 22


def ceil_to_ue8m0(x: Tensor) -> Tensor:
    """Return the smallest power of two >= |x|, as float32.

    The exponent field is clamped to 1..254, so 0 and everything below 2^-126 give 2^-126, and NaN, inf and everything
    above 2^127 give 2^127. The function changes a scale: a payload that was quantised with the old scale no longer
    fits the new one (see `requantize_to_ue8m0`).

    Args:
        x: any shape, floating; converted to float32 first.

    >>> ceil_to_ue8m0(torch.tensor([1.0, 1.5, -3.0])).tolist()
    [1.0, 2.0, 4.0]

    Contract: DeepGEMM 2.8.2, ``utils.ceil_to_ue8m0``.
    """
    bits = x.float().abs().view(torch.int32)
    exponent = (bits >> _MANTISSA_BITS) + ((bits & _MANTISSA_MASK) != 0).int()
    return (exponent.clamp_(1, 254) << _MANTISSA_BITS).view(torch.float32)


def _exponent_bytes(x: Tensor, caller: str, blocks_per_word: int) -> Tensor:
    """Return the UE8M0 byte of every scale as uint8, or say where the first unrepresentable one is."""
    if x.dtype != torch.float32:
        raise InvalidArgumentError(f"{caller}: x has dtype {x.dtype}, expected torch.float32 scales. Use x.float().")
    if x.dim() == 0 or x.size(-1) % blocks_per_word:
        raise InvalidArgumentError(
            f"{caller}: x has shape {tuple(x.shape)}, expected a last dimension that is a multiple of "
            f"{blocks_per_word}, since one word holds {blocks_per_word} exponents. Pad it with 1.0."
        )
    bits = x.view(torch.int32)
    exponent = (bits >> _MANTISSA_BITS) & 0xFF
    # NaN keeps its meaning (byte 255); byte 0 arrives as 0.0 or, from float8_e8m0fnu, as the subnormal 2^-127.
    is_good = ((bits >= 0) & ((bits & _MANTISSA_MASK) == 0)) | (bits == _BITS_OF_BYTE_0) | x.isnan()
    if not bool(is_good.all()):
        position = tuple((~is_good).nonzero()[0].tolist())
        raise InvalidArgumentError(
            f"{caller}: x[{', '.join(map(str, position))}] is {x[position].item()!r}, expected a power of two: "
            f"UE8M0 stores an exponent only, and rounding the scale alone would change payload * scale. "
            f"Quantise with use_ue8m0=True, or convert payload and scales together with requantize_to_ue8m0."
        )
    return exponent.to(torch.uint8)


def _bytes_to_words(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Reinterpret [..., n] exponent bytes as [..., n / itemsize] words, the first byte lowest."""
    count = exponents.size(-1) // dtype.itemsize
    if exponents.numel() == 0:  # torch refuses to reinterpret an empty last dimension
        return torch.empty(*exponents.shape[:-1], count, dtype=dtype, device=exponents.device)
    return exponents.contiguous().view(dtype)


def _words_to_scales(words: Tensor, dtype: torch.dtype, caller: str) -> Tensor:
    if words.dtype != dtype or words.dim() == 0:
        raise InvalidArgumentError(
            f"{caller}: packed_sf has dtype {words.dtype} and shape {tuple(words.shape)}, expected {dtype} words with "
            f"at least one dimension."
        )
    if words.numel() == 0:
        shape = (*words.shape[:-1], words.size(-1) * dtype.itemsize)
        return torch.empty(shape, dtype=torch.float32, device=words.device)
    return (words.contiguous().view(torch.uint8).int() << _MANTISSA_BITS).view(torch.float32)


def pack_ue8m0_to_int(x: Tensor) -> Tensor:
    """Pack four power-of-two scales per int32 word, the first one in the lowest byte.

    Args:
        x: [..., 4 * w] float32. Every value is a power of two in 2^-127..2^127 (0.0 is byte 0; inf and NaN are
            byte 255, UE8M0's NaN).

    Returns:
        [..., w] int32, row-major.

    Raises:
        InvalidArgumentError: wrong dtype, last dimension not a multiple of 4, or a scale that is not a power of two;
            the message names the position of the first one.

    >>> hex(pack_ue8m0_to_int(torch.tensor([1.0, 2.0, 0.5, 4.0])).item() & 0xFFFFFFFF)
    '0x817e807f'

    Contract: DeepGEMM 2.8.2, ``utils.pack_ue8m0_to_int``.
    """
    return _bytes_to_words(_exponent_bytes(x, "pack_ue8m0_to_int", 4), torch.int32)


def unpack_ue8m0_from_int(packed_sf: Tensor) -> Tensor:
    """Unpack int32 words to four float32 scales each: the inverse of `pack_ue8m0_to_int`.

    Byte e becomes the float32 with exponent field e and no mantissa, so byte 0 (padding) is 0.0 and byte 255 is inf.

    Args:
        packed_sf: [..., w] int32, any strides.

    Returns:
        [..., 4 * w] float32, row-major.

    Contract: DeepGEMM 2.8.2, ``utils.unpack_ue8m0_from_int``.
    """
    return _words_to_scales(packed_sf, torch.int32, "unpack_ue8m0_from_int")


def pack_ue8m0_to_int16(x: Tensor) -> Tensor:
    """Pack two power-of-two scales per int16 word; the low byte is the even block (the Ascend word, contract 2.4).

    Args:
        x: [..., 2 * w] float32, as for `pack_ue8m0_to_int`.

    Returns:
        [..., w] int16, row-major. Kernels want the MN-major form that `unikernels.scale_layouts` makes of it.

    Raises:
        InvalidArgumentError: as `pack_ue8m0_to_int`, with an even last dimension.
    """
    return _bytes_to_words(_exponent_bytes(x, "pack_ue8m0_to_int16", 2), torch.int16)


def unpack_ue8m0_from_int16(packed_sf: Tensor) -> Tensor:
    """Unpack [..., w] int16 words to [..., 2 * w] float32 scales: the inverse of `pack_ue8m0_to_int16`."""
    return _words_to_scales(packed_sf, torch.int16, "unpack_ue8m0_from_int16")


def pack_padded_exponents(sf: Tensor) -> Tensor:
    """Pack [m, blocks] power-of-two scales to [m, ceil(blocks / 4)] int32; missing blocks are 1.0.

    Unlike `pack_ue8m0_to_int` it does not look at the values (no device synchronisation): for scales this package
    rounded itself.
    """
    exponents = ((sf.view(torch.int32) >> _MANTISSA_BITS) & 0xFF).to(torch.uint8)
    missing = -sf.size(-1) % 4
    return _bytes_to_words(torch.nn.functional.pad(exponents, (0, missing), value=ONE_UE8M0), torch.int32)
