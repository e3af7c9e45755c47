"""FP4 operands for kernels that read FP8: every E2M1 value is an E4M3 value, so the expansion is exact."""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime.executor import Executor
from ..runtime.kernel import Kernel
from .expand_fp4_variant import ExpandVariant


def expand_fp4(executor: Executor, codes: Tensor) -> Tensor:
    """Return E4M3 values [rows, 2 * columns] of packed E2M1 codes [rows, columns] (low nibble first)."""
    rows, columns = codes.shape
    flat = codes.contiguous().view(torch.uint8).view(-1)
    pairs = torch.empty(rows * columns, dtype=torch.uint16, device=codes.device)
    kernel = Kernel("expand_fp4_program", ExpandVariant(block=8192, num_cores=2 * executor.num_cores()))
    executor.run(kernel, flat, pairs)
    return pairs.view(torch.float8_e4m3fn).view(rows, 2 * columns)
