"""Comparing one output tensor with what was expected; knows nothing of backends or cases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..testing import calc_diff

#: Upper ends of the ULP histogram's buckets; the last bucket holds everything beyond.
ULP_BUCKETS = (0, 1, 2, 4, 8, 16, 64)

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far an output is from the expected one.

    Attributes:
        calc_diff: 1 - 2*sum(x*y)/sum(x*x + y*y) over finite entries, in float64.
        max_abs, max_rel: largest absolute error, and largest error relative to the expected magnitude (entries whose
            expected value is zero count in max_abs only).
        ulp_histogram: counts of distances in units of the output's last place, by `ULP_BUCKETS`.
        num_special_mismatches: entries where NaN, +inf or -inf is not met by the same.
        num_bit_mismatches: entries with other bits.
        tolerance: accepted calc_diff; 0 asks for equal bits.
    """

    calc_diff: float
    max_abs: float
    max_rel: float
    ulp_histogram: tuple[int, ...]
    num_special_mismatches: int
    num_bit_mismatches: int
    num_elements: int
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within tolerance and all special values agree."""
        if self.tolerance == 0:
            return self.num_bit_mismatches == 0
        return self.num_special_mismatches == 0 and self.calc_diff <= self.tolerance


def compare(actual: Tensor, expected: Tensor, tolerance: float) -> Comparison:
    """Compare two CPU tensors of one dtype and shape.

    Raises:
        ValueError: dtype or shape differ; such a difference has no size.
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise ValueError(
            f"outputs differ in kind: got {actual.dtype} {tuple(actual.shape)}, "
            f"expected {expected.dtype} {tuple(expected.shape)}."
        )
    bits_actual, bits_expected = _bits(actual), _bits(expected)
    num_bit_mismatches = int((bits_actual != bits_expected).sum())
    # Integers and packed words have no rounding: they agree or they do not, whatever the tolerance.
    if not actual.is_floating_point():
        difference = 0.0 if num_bit_mismatches == 0 else num_bit_mismatches / actual.numel()
        histogram = _histogram((bits_actual != bits_expected).to(torch.int64) * (ULP_BUCKETS[-1] + 1))
        return Comparison(difference, difference, difference, histogram, 0, num_bit_mismatches, actual.numel(), 0.0)
    x, y = actual.double().flatten(), expected.double().flatten()
    special = ~(x.isfinite() & y.isfinite())
    same_special = (x == y) | (x.isnan() & y.isnan())
    num_special_mismatches = int((special & ~same_special).sum())
    x, y = x[~special], y[~special]
    ulp = (_ordered(bits_actual).flatten() - _ordered(bits_expected).flatten()).abs()[~special]
    error = (x - y).abs()
    is_nonzero = y != 0
    return Comparison(
        calc_diff=float(calc_diff(x, y)) if x.numel() else 0.0,
        max_abs=float(error.max()) if x.numel() else 0.0,
        max_rel=float((error[is_nonzero] / y[is_nonzero].abs()).max()) if bool(is_nonzero.any()) else 0.0,
        ulp_histogram=_histogram(ulp),
        num_special_mismatches=num_special_mismatches,
        num_bit_mismatches=num_bit_mismatches,
        num_elements=actual.numel(),
        tolerance=tolerance,
    )


def _bits(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.bool:
        return tensor
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def _ordered(bits: Tensor) -> Tensor:
    """Map sign-magnitude float bits to integers in the order of the values, so that neighbours differ by one."""
    wide = bits.to(torch.int64)
    lowest = -(1 << (8 * bits.element_size() - 1))
    return torch.where(wide < 0, lowest - wide, wide)


def _histogram(distances: Tensor) -> tuple[int, ...]:
    edges = torch.tensor(ULP_BUCKETS)
    return tuple(torch.bincount(torch.bucketize(distances.flatten(), edges), minlength=len(ULP_BUCKETS) + 1).tolist())
