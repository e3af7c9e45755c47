"""FP4 operands for kernels that read FP8: every E2M1 value is an E4M3 value, so the expansion is exact."""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime.executor import Executor
from ..runtime.kernel import Kernel
from .expand_fp4_variant import ExpandVariant

#: Bytes of codes; with their values, twice, they take 192 KiB or 48 KiB of the 216 KiB of UB.
_LARGE_BLOCK, _SMALL_BLOCK = 32768, 8192


def expand_fp4(executor: Executor, codes: Tensor) -> Tensor:
    """Return E4M3 values [rows, 2 * columns] of packed E2M1 codes [rows, columns] (low nibble first)."""
    rows, columns = codes.shape
    flat = codes.contiguous().view(torch.uint8).view(-1)
    pairs = torch.empty(rows * columns, dtype=torch.uint16, device=codes.device)
    large, small = kernels(executor.num_cores())
    # A vector function costs its launch, so large blocks pay as soon as every vector core has one.
    executor.run(large if flat.numel() >= 2 * executor.num_cores() * _LARGE_BLOCK else small, flat, pairs)
    return pairs.view(torch.float8_e4m3fn).view(rows, 2 * columns)


def kernels(num_cores: int) -> tuple[Kernel, Kernel]:
    """Return the kernels for large and for small operands on `num_cores` cube cores."""
    large, small = (
        Kernel("expand_fp4_program", ExpandVariant(block, 2 * num_cores)) for block in (_LARGE_BLOCK, _SMALL_BLOCK)
    )
    return large, small
