"""The head sum of MQA logits: relu and weights of all heads in one pass over the dot products.

The dot products come from matmul.py; windows and masks are decided by the caller.
"""

from __future__ import annotations

from torch import Tensor

from .. import _native
from .matmul import num_threads


def weighted_relu_sum(dots: Tensor, weights: Tensor, out: Tensor, *, isa: str | None = None) -> None:
    """Write out[s, j] = sum over h of weights[s, h] * max(dots[s, h, j], 0), heads in ascending order.

    Args:
        dots: float32 [s, h, n], unit stride along n. NaN stays NaN.
        weights: float32 [s, h], any strides.
        out: float32 [s, n], unit stride along n.
        isa: one of `_native.isa_variants()`; None: the best one.
    """
    num_rows, num_heads, num_columns = dots.shape
    _native.weighted_relu_sum(
        dots.data_ptr(),
        (dots.stride(0), dots.stride(1)),
        weights.data_ptr(),
        (weights.stride(0), weights.stride(1)),
        out.data_ptr(),
        out.stride(0),
        (num_rows, num_heads, num_columns),
        num_threads(),
        isa,
    )
