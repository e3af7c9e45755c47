"""Comparing tensors: `calc_diff`, and assertions that raise with the evidence.

No tolerance is chosen here; every operation states its own. Timing lives in `bench`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgumentError

#: Elements converted to float64 at a time, so that a comparison needs a few MiB whatever the size.
_CHUNK = 1 << 20


def _checked_pair(x: Tensor, y: Tensor, caller: str) -> tuple[Tensor, Tensor]:
    for name, tensor in (("x", x), ("y", y)):
        if not isinstance(tensor, Tensor) or tensor.dtype.is_complex:
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InvalidArgumentError(f"{caller}: {name} is {got}, expected a tensor of real numbers.")
    if x.shape != y.shape:
        raise InvalidArgumentError(
            f"{caller}: x has shape {tuple(x.shape)}, y has {tuple(y.shape)}, expected equal shapes: a broadcast would "
            f"compare values that do not belong together."
        )
    return x.reshape(-1), y.reshape(-1)


def _double_chunks(x: Tensor, y: Tensor, start: int) -> tuple[Tensor, Tensor]:
    part_x, part_y = x[start : start + _CHUNK], y[start : start + _CHUNK]
    return part_x.double(), part_y.to(x.device).double()


def _power_of_two_near(x: Tensor, y: Tensor) -> float:
    """Return a power of two near the largest finite |value|; dividing by it is exact and keeps squares in range."""
    largest = 0.0
    for start in range(0, x.numel(), _CHUNK):
        for part in _double_chunks(x, y, start):
            largest = max(largest, float(part.abs().nan_to_num_(nan=0.0, posinf=0.0).max()))
    return math.ldexp(1.0, max(math.frexp(largest)[1] - 1, -1022)) if largest else 1.0


def calc_diff(x: Tensor, y: Tensor) -> float:
    """Return 1 - 2 * sum(x * y) / sum(x * x + y * y) in float64: 0 for equal tensors, about 1 for unrelated ones.

    Computed as sum((x - y)^2) / sum(x^2 + y^2), the same number without its cancellation. The size of the values does
    not matter. Both all zero (or empty) gives 0. A NaN on either side, or an infinity that the other side does not have
    with the same sign, gives inf, which no tolerance accepts; infinities that agree count as equal.

    Args:
        x: any shape, any real dtype, also FP8.
        y: the same shape; may live on another device.

    Raises:
        InvalidArgumentError: shapes differ, or an argument is not a tensor of real numbers.

    >>> calc_diff(torch.ones(3), torch.ones(3))
    0.0

    Contract: DeepGEMM 2.8.2, ``testing.calc_diff``; non-finite values and shapes are treated more strictly.
    """
    x, y = _checked_pair(x, y, "calc_diff")
    # Squares of other dtypes' values cannot leave the range of float64.
    needs_scaling = torch.float64 in (x.dtype, y.dtype)
    scale = _power_of_two_near(x, y) if needs_scaling else 1.0
    difference = norm = 0.0
    for start in range(0, x.numel(), _CHUNK):
        part_x, part_y = _double_chunks(x, y, start)
        if not bool((part_x.isfinite() & part_y.isfinite()).all()):
            is_same_inf = part_x.isinf() & (part_x == part_y)
            if not bool((part_x.isfinite() & part_y.isfinite() | is_same_inf).all()):
                return math.inf
            part_x, part_y = part_x.masked_fill(is_same_inf, 0.0), part_y.masked_fill(is_same_inf, 0.0)
        if needs_scaling:
            part_x, part_y = part_x / scale, part_y / scale
        norm += float(part_x.dot(part_x) + part_y.dot(part_y))
        delta = part_x - part_y
        difference += float(delta.dot(delta))
    return difference / norm if norm else 0.0


def count_bytes(*tensors: Any) -> int:
    """Return the bytes of all elements of the given tensors; (nested) tuples and lists are opened, None counts 0.

    >>> count_bytes(torch.zeros(2, 3), (torch.zeros(4, dtype=torch.int8), None))
    28

    Contract: DeepGEMM 2.8.2, ``testing.count_bytes``.
    """
    total = 0
    for entry in tensors:
        if isinstance(entry, (tuple, list)):
            total += count_bytes(*entry)
        elif isinstance(entry, Tensor):
            total += entry.numel() * entry.element_size()
        elif entry is not None:
            raise InvalidArgumentError(f"count_bytes: got a {type(entry).__name__}, expected tensors, tuples or None.")
    return total


def _worst(actual: Tensor, expected: Tensor) -> str:
    """Describe where two flat tensors of equal shape differ most; a NaN or a lone infinity counts as the most."""
    worst_index, worst_error = 0, -1.0
    flat_actual, flat_expected = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, flat_actual.numel(), _CHUNK):
        part_actual, part_expected = _double_chunks(flat_actual, flat_expected, start)
        error = (part_actual - part_expected).abs()
        error = error.masked_fill(part_actual == part_expected, 0.0).nan_to_num_(nan=math.inf, posinf=math.inf)
        if float(error.max()) > worst_error:
            worst_error, worst_index = float(error.max()), start + int(error.argmax())
    index = []
    remaining = worst_index
    for size in reversed(actual.shape):
        index.append(remaining % size)
        remaining //= size
    got, wanted = (flat[worst_index].double().item() for flat in (flat_actual, flat_expected))
    return f"worst at {list(reversed(index))}: actual {got!r}, expected {wanted!r}"


def assert_close(actual: Tensor, expected: Tensor, tol: float, label: str = "") -> None:
    """Raise unless calc_diff(actual, expected) <= tol.

    Args:
        actual: any shape, any real dtype.
        expected: the same shape.
        tol: largest accepted `calc_diff`, >= 0.
        label: what is compared; starts the message.

    Raises:
        AssertionError: with the difference, the worst index and both values there.
        InvalidArgumentError: shapes differ, or tol is negative or NaN.
    """
    if not tol >= 0:
        raise InvalidArgumentError(f"assert_close: tol is {tol!r}, expected a number >= 0.")
    difference = calc_diff(actual, expected)
    if not difference <= tol:
        raise AssertionError(
            f"{label or 'tensors'}: calc_diff {difference:.3e} > {tol:.1e}; {_worst(actual, expected)} "
            f"(shape {list(actual.shape)}, {actual.dtype})"
        )


def _bytes(tensor: Tensor) -> Tensor:
    """Return the elements as [numel, itemsize] bytes, in row-major order."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).reshape(tensor.numel(), tensor.element_size())


def assert_bitwise_equal(x: Tensor, y: Tensor, label: str = "") -> None:
    """Raise unless x and y have the same shape, dtype and bytes (so 0.0 and -0.0 differ, and equal NaNs do not).

    Raises:
        AssertionError: with how many elements differ, the first one's index and both values and bytes.

    Contract: DeepGEMM 2.8.2, ``testing.assert_bitwise_equal``.
    """
    what = label or "tensors"
    float4 = getattr(torch, "float4_e2m1fn_x2", None)
    if x.dtype == y.dtype == float4:  # torch cannot index or print it
        x, y = x.view(torch.uint8), y.view(torch.uint8)
    if x.shape != y.shape or x.dtype != y.dtype:
        raise AssertionError(f"{what}: {list(x.shape)} {x.dtype} against {list(y.shape)} {y.dtype}")
    if x.numel() == 0:
        return
    bytes_x, bytes_y = _bytes(x), _bytes(y.to(x.device))
    if torch.equal(bytes_x, bytes_y):
        return
    differs = (bytes_x != bytes_y).any(dim=1)
    flat = int(differs.to(torch.uint8).argmax())
    index = [int(part) for part in torch.unravel_index(torch.tensor(flat), x.shape)]
    values = [f"{side.reshape(-1)[flat].double().item()!r}" if not x.dtype.is_complex else "?" for side in (x, y)]
    texts = [bytes(reversed(side[flat].tolist())).hex() for side in (bytes_x, bytes_y)]
    raise AssertionError(
        f"{what}: {int(differs.sum())} of {x.numel()} elements differ; first at {index}: "
        f"{values[0]} (0x{texts[0]}) against {values[1]} (0x{texts[1]})"
    )
