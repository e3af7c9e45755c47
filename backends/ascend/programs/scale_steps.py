"""What programs that read scales share. Importing this module imports TileLang."""

# mypy: ignore-errors
# TileLang rewrites macros from their source: assignments declare buffers and variables.

from typing import Any

import tilelang.ascend.language as T

NAN = 255  # UE8M0 byte
_SIGN_AND_MANTISSA, _INFINITY = 0x807FFFFF - (1 << 32), 0x7F800000
_TWO_POW_MINUS_127 = 0x00400000  # subnormal: UE8M0 byte 0


@T.macro
def exponent_of_bits(element: T.Ref, is_bad: Any) -> None:
    """Turn float32 bits into the exponent; no power of two from 2^-127 to 2^127 becomes NAN and sets is_bad[0]."""
    has_no_exponent = (element & _SIGN_AND_MANTISSA) != 0 or element == _INFINITY
    if has_no_exponent and element != _TWO_POW_MINUS_127:
        element = NAN << 23
        T.atomic_max(is_bad[0], 1)
    element = element >> 23
