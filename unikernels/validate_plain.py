"""Checks of arguments that are what they look like: dense tensors of one dtype and shape, and Python numbers.

Operands with scales, epilogues and overlaps are in validate.py; nothing here reads tensor contents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from . import validate
from .epilogue import real_number
from .errors import ArgumentTypeError, InvalidArgumentError


def dense(
    function: str, name: str, value: object, shape: Sequence[int], dtype: torch.dtype, why: str, device: torch.device
) -> Tensor:
    """Check a contiguous tensor of this shape, dtype and device; `why` words the shape, for example ``(m, n)``."""
    tensor = validate.require_tensor(function, name, value)
    validate.require_dtype(function, name, tensor, dtype)
    validate.require_shape(function, name, tensor, shape, why)
    if tensor.device != device:
        raise InvalidArgumentError(
            f"{function}: {name} is on {tensor.device}, the other tensors are on {device}. Move it there."
        )
    validate.require_contiguous(function, name, tensor)
    return tensor


def optional_dense(
    function: str, name: str, value: object, shape: Sequence[int], dtype: torch.dtype, why: str, device: torch.device
) -> Tensor | None:
    """Check as `dense` does, or accept None."""
    return None if value is None else dense(function, name, value, shape, dtype, why, device)


def together(function: str, why: str, **values: object) -> bool:
    """Require all or none of the named arguments; returns whether they are given."""
    missing = [name for name, value in values.items() if value is None]
    if missing and len(missing) < len(values):
        given = [name for name in values if name not in missing]
        raise InvalidArgumentError(
            f"{function}: {' and '.join(given)} given without {' and '.join(missing)}; they go together: {why}. "
            f"Give all of them or none."
        )
    return not missing


def integer(function: str, name: str, value: object, minimum: int, maximum: int | None = None, why: str = "") -> int:
    """Check an int (also of NumPy, no bool) in a closed range; returns a Python int."""
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ArgumentTypeError(f"{function}: {name} is {value!r} ({type(value).__name__}), expected a Python int.")
        value = int(value)
    if value < minimum or (maximum is not None and value > maximum):
        expected = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
        raise InvalidArgumentError(f"{function}: {name} is {value}, expected {expected}{f': {why}' if why else ''}.")
    return value


def boolean(function: str, name: str, value: object) -> bool:
    """Check a Python bool."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{function}: {name} is {value!r} ({type(value).__name__}), expected True or False.")
    return value


def number(function: str, name: str, value: object) -> float:
    """Check a finite number."""
    result = real_number(function, name, value)
    if not math.isfinite(result):
        raise InvalidArgumentError(f"{function}: {name} is {value}, expected a finite number.")
    return result


def multiple(function: str, name: str, value: int, factor: int, what: str) -> None:
    """Require a positive size that is a multiple of `factor`; `what` says which dimension it is."""
    if value <= 0 or value % factor:
        raise InvalidArgumentError(
            f"{function}: {name} is {value} ({what}), expected a positive multiple of {factor}. Pad that dimension."
        )
