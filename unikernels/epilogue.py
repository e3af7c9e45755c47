"""Epilogues of a GEMM (`deep_gemm.epilogue`): what happens to the float32 accumulator before it is stored.

The objects only carry parameters; unikernels/operations/epilogues.py defines what they compute.
Contract: DeepGEMM 2.8.2, section "alpha and epilogues"; FP8Quantization is DeepGEMM-Ascend's.
"""

from __future__ import annotations

from numbers import Real

from torch import Tensor

from .errors import ArgumentTypeError, InvalidArgumentError


def real_number(function: str, name: str, value: object) -> float:
    """Return a Python or NumPy number (no bool, no tensor) as a float, or refuse it."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(f"{function}: {name} is {value!r} ({type(value).__name__}), expected a Python number.")
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(
            f"{function}: {name} is an int of {len(str(value))} digits, expected a number that float can hold."
        ) from None


class Epilogue:
    """Base class; use one of the subclasses."""

    __slots__ = ()

    def __init__(self) -> None:
        if type(self) is Epilogue:
            raise ArgumentTypeError(
                "Epilogue is a base class. Use Identity, Alpha, FP8CastWithClamp or another subclass."
            )


class Identity(Epilogue):
    """Store the accumulator, rounded once to d's dtype."""

    __slots__ = ()


class Alpha(Epilogue):
    """Multiply the float32 product by `alpha` before c is added.

    Args:
        alpha: a Python or NumPy number, rounded to float32. As in DeepGEMM infinity and NaN are accepted and take part in
            the arithmetic.
    """

    __slots__ = ("alpha",)

    def __init__(self, alpha: float) -> None:
        self.alpha = real_number("Alpha", "alpha", alpha)


class FP8CastWithClamp(Epilogue):
    """Quantise the output to E4M3 with one UE8M0 scale per 32 columns.

    Args:
        sfd: scale output, int32 [m, n/128] with strides (1, P), P a multiple of 4 and at least m (int16 [m, n/64] with
            strides (1, m) in the Ascend layout).
        clamp_value: None, or a positive limit for magnitudes.
        clamped_count: one-element uint32 tensor, overwritten with how many values exceeded the limit.
    """

    __slots__ = ("clamp_value", "clamped_count", "sfd")

    def __init__(self, sfd: Tensor, clamp_value: float | None = None, clamped_count: Tensor | None = None) -> None:
        if clamp_value is not None:
            clamp_value = real_number("FP8CastWithClamp", "clamp_value", clamp_value)
            if not clamp_value > 0:
                raise InvalidArgumentError(
                    f"FP8CastWithClamp: clamp_value is {clamp_value}, expected None or a number > 0."
                )
        self.sfd = sfd
        self.clamp_value = clamp_value
        self.clamped_count = clamped_count


class FP8Quantization(FP8CastWithClamp):
    """`FP8CastWithClamp` without a clamp (DeepGEMM-Ascend's name)."""

    __slots__ = ()

    def __init__(self, sfd: Tensor) -> None:
        super().__init__(sfd)


class BF16StochasticRounding(Epilogue):
    """Round the accumulator to bfloat16 stochastically, with draws that depend only on the accumulator's bits."""

    __slots__ = ()
