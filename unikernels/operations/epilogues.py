"""What each epilogue computes, in torch: shared by the references and by backends that store through them.

`store` is the single door: it turns a float32 accumulator into the output tensors of a problem.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..epilogue import BF16StochasticRounding, Epilogue, FP8CastWithClamp

#: Smallest maximum of a block before the division (contract 1.7); keeps scales of zero blocks positive.
_AMAX_FLOOR = 1e-4
_E4M3_MAX = 448.0


def store(accumulator: Tensor, d: Tensor, epilogue: Epilogue | None, *, first_column_block: int = 0) -> None:
    """Write `accumulator` (float32 or float64 [m, n]) to `d` as `epilogue` says.

    Args:
        first_column_block: for a batch of GEMMs that share one scale tensor, the 32-column block where this one starts.
    """
    if isinstance(epilogue, FP8CastWithClamp):
        _quantise(accumulator.float(), d, epilogue, first_column_block)
    elif isinstance(epilogue, BF16StochasticRounding):
        # Sums start at +0 and never become -0, whose sign the hash would see; torch's product of K = 1 has no such start.
        d.copy_(stochastic_bf16(accumulator.float() + 0.0))
    else:
        d.copy_(accumulator)


def _quantise(accumulator: Tensor, d: Tensor, epilogue: FP8CastWithClamp, first_block: int) -> None:
    """E4M3 output with UE8M0 block scales; bitwise the same as a bf16 store followed by `per_token_cast_to_fp8`."""
    m, n = accumulator.shape
    values = accumulator.bfloat16().float()
    limit = epilogue.clamp_value
    if limit is not None:
        if epilogue.clamped_count is not None:
            count = (values.abs() > limit).sum()
            # The GEMMs of a batch share the counter; the first one starts it.
            before = epilogue.clamped_count.to(torch.int64) if first_block else 0
            epilogue.clamped_count.copy_(before + count)
        values = torch.where(values.isnan(), values, values.clamp(-limit, limit))
    blocks = values.view(m, n // 32, 32)
    scaled_amax = blocks.abs().amax(-1).clamp(min=_AMAX_FLOOR) / _E4M3_MAX
    bits = scaled_amax.view(torch.int32)
    exponents = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    inverse = torch.ldexp(torch.ones_like(scaled_amax), 127 - exponents)
    d.copy_((blocks * inverse.unsqueeze(-1)).view(m, n).to(torch.float8_e4m3fn))
    write_scale_bytes(epilogue.sfd, exponents.to(torch.uint8), first_block)


def write_scale_bytes(sfd: Tensor, exponents: Tensor, first_block: int) -> None:
    """Write UE8M0 bytes [m, blocks] into packed words of `sfd`, starting at column block `first_block`.

    Whole words only: `first_block` and the number of blocks are multiples of the blocks per word.
    """
    per_word = sfd.element_size()
    m, num_blocks = exponents.shape
    words = exponents.contiguous().view(sfd.dtype).view(m, num_blocks // per_word)
    start = first_block // per_word
    sfd[:, start : start + num_blocks // per_word] = words


def stochastic_bf16(accumulator: Tensor) -> Tensor:
    """Stochastic rounding of float32 [m, n] to bfloat16; the draw is a hash of four neighbouring columns' bits."""
    m, n = accumulator.shape
    mask = 0xFFFFFFFF
    bits = torch.nn.functional.pad(accumulator.contiguous().view(torch.int32).to(torch.int64) & mask, (0, -n % 4))
    quads = bits.view(m, bits.shape[1] // 4, 4)
    factors = torch.tensor([0x5671D42B, 0x9995E499, 0xACE1B8A5, 0xE153538D], device=accumulator.device)
    group = torch.arange(quads.shape[1], device=accumulator.device)
    h = (_multiply(quads, factors).sum(-1) + group) & mask
    h = _multiply(h ^ (h >> 23), 0x7FEB352D)
    h = h ^ (h >> 16)
    x = _multiply(h, 0x846CA68B)
    x = x ^ (x >> 11)
    y = _multiply(h, 0xD35A2D97)
    y = y ^ (y >> 11)
    draws = torch.stack([x & 0xFFFF, x >> 16, y & 0xFFFF, y >> 16], dim=-1)
    rounded = (quads >> 16) + (((quads & 0xFFFF) + draws) >> 16)
    rounded = rounded.view(bits.shape)[:, :n] & 0xFFFF
    return torch.where(rounded > 0x7FFF, rounded - 0x10000, rounded).to(torch.int16).view(torch.bfloat16)


def _multiply(x: Tensor, factor: Tensor | int) -> Tensor:
    """Product modulo 2^32 of values below 2^32, without overflowing int64."""
    low = (x & 0xFFFF) * factor
    high = ((x >> 16) * factor) & 0xFFFF
    return (low + (high << 16)) & 0xFFFFFFFF
