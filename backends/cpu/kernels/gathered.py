"""Grouped GEMMs with gathered rows on the CPU (the legacy functions), and the row gather itself."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unikernels.operations import Operand


def select_rows(operand: Operand, rows: Tensor) -> Operand:
    """Return a K-major operand of the given rows, in this order; one scale per row, if there are scales."""
    data, scales = operand.data, operand.scales
    if data.element_size() == 1:
        data = data.view(torch.uint8).index_select(0, rows).view(data.dtype)
    else:
        data = data.index_select(0, rows)
    if scales is not None:
        scales = replace(scales, data=scales.data.index_select(0, rows), mn=len(rows))
    return replace(operand, data=data, mn=len(rows), scales=scales)
