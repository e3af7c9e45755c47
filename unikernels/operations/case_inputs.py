"""Random inputs for cases: quantised operands with each form of scales. Uses the public casts, no backend."""

from __future__ import annotations

import enum

import torch
from torch import Tensor

from ..scale_layouts import ScaleFormat, Scales, convert_scales
from ..utils import per_block_cast_to_fp8, per_token_cast_to_fp4, per_token_cast_to_fp8, transpose_packed_fp4

#: `calc_diff` against the same operands dequantised: bf16 rounding of the result (2^-9 relative) leaves about 2e-6.
OPERAND_TOLERANCE = 1e-5


class ScaleForm(enum.Enum):
    """How scales are passed: (label, format, gran_n of b, gran_k)."""

    FP32_BLOCK = ("fp32_128x128", ScaleFormat.FP32, 128, 128)
    FP32_MX = ("fp32_32", ScaleFormat.FP32, 1, 32)
    INT32_128 = ("int32_128", ScaleFormat.UE8M0X4_INT32, 1, 128)
    INT32_MX = ("int32_32", ScaleFormat.UE8M0X4_INT32, 1, 32)
    INT16_MX = ("int16_32", ScaleFormat.UE8M0X2_INT16, 1, 32)

    @property
    def label(self) -> str:
        return self.value[0]

    @property
    def format(self) -> ScaleFormat:
        return self.value[1]

    @property
    def gran_n(self) -> int:
        return self.value[2]

    @property
    def gran_k(self) -> int:
        return self.value[3]


def randn(generator: torch.Generator, *shape: int) -> Tensor:
    """Return standard normal float32 values."""
    return torch.randn(shape, generator=generator)


def integers(generator: torch.Generator, rows: int, columns: int, limit: int = 127) -> Tensor:
    """Return float32 integers up to a magnitude, exact in bfloat16 up to 256: their products have exact sums."""
    return torch.randint(-limit, limit + 1, (rows, columns), generator=generator).float()


def operand_bytes(kind: str, mn: int, k: int) -> float:
    """Return the bytes of one operand with its scales (one byte per 32 elements)."""
    return mn * k * {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}[kind] + (0 if kind == "bf16" else mn * k / 32)


def quantised(
    generator: torch.Generator, kind: str, mn: int, k: int, form: ScaleForm, *, gran_mn: int = 1, k_major: bool = True
) -> tuple[Tensor, Tensor]:
    """Return (data, scales) of a random [mn, k] operand in the given form.

    Exponent scales are used throughout for packed forms; the block form has arbitrary float32 scales.
    """
    # Rows of very different size, so that a wrong scale shows.
    x = randn(generator, mn, k) * torch.exp2(torch.randint(-6, 7, (mn, 1), generator=generator).float())
    use_ue8m0 = form is not ScaleForm.FP32_BLOCK
    if kind == "fp4":
        # The FP4 cast has per-token scales only; a block scale repeats the largest of its rows' scales at payload 1.
        data, sf = per_token_cast_to_fp4(x, use_ue8m0, form.gran_k)
        if gran_mn > 1:
            sf = torch.stack([rows.amax(0) for rows in sf.split(gran_mn)])
    elif gran_mn > 1:
        data, sf = per_block_cast_to_fp8(x, use_ue8m0, form.gran_k)
    else:
        data, sf = per_token_cast_to_fp8(x, use_ue8m0, form.gran_k)
    if form.format is not ScaleFormat.FP32:
        sf = convert_scales(Scales(sf, ScaleFormat.FP32, gran_mn, form.gran_k, mn, k), form.format).data
    return (data if k_major else _mn_major(data, kind)), sf


def _mn_major(data: Tensor, kind: str) -> Tensor:
    """Store the same logical matrix with unit stride along mn."""
    if kind != "fp4":
        return data.mT.contiguous().mT
    return transpose_packed_fp4(data).mT
