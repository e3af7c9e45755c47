"""Epilogues on the host: which form of a program an epilogue needs, and what it hands to the kernel.

The kernel side is epilogue_steps.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unikernels.epilogue import BF16StochasticRounding, FP8CastWithClamp
from unikernels.epilogue import Epilogue as EpilogueObject

from ..programs.gemm_variant import Epilogue
from . import operands

#: Smallest run of columns stored apart: 32 bytes of bfloat16, the alignment of rows in UB.
_RUN = 16
_WORDS = {torch.int16: "int16", torch.int32: "int32"}


@dataclass(frozen=True, slots=True)
class Store:
    """How a product becomes D.

    Attributes:
        epilogue, out, sfd, counts_clamped, run: attributes of the same names of a variant.
        d, c, scales: tensors the kernel takes as D, C and SFD; D stands in for those that are not used.
        count: int32 [1], or a stand-in.
        factor: alpha, or the largest magnitude of an FP8 D.
        head: (left + right, middle, right).
    """

    epilogue: Epilogue
    out: str
    d: Tensor
    c: Tensor
    scales: Tensor
    count: Tensor
    factor: float
    sfd: str = "int16"
    counts_clamped: bool = False
    run: int = 0
    head: tuple[int, int, int] = (1, 0, 0)

    def arguments(self) -> tuple[Tensor | float | int, ...]:
        """Return what a program takes after the operands: C, D, SFD, count, factor."""
        return self.c, self.d, self.scales, self.count, self.factor


def store(
    d: Tensor,
    c: Tensor | None,
    alpha: float,
    epilogue: EpilogueObject | None,
    head_splits: tuple[int, int, int] | None = None,
) -> Store:
    """Return how a kernel stores to d; the counter of clamped values starts at zero here.

    Args:
        d: [m, n], or [batch, m, n], whose entries then have their scales side by side (see `BatchedGemmProblem`).
    """
    out = operands.output(d)
    unused = operands.unused(torch.int32, d.device)
    if isinstance(epilogue, FP8CastWithClamp):
        return _quantise(out, epilogue, unused)
    if isinstance(epilogue, BF16StochasticRounding):
        out = out.view(torch.uint16)
        return Store("round", "uint16", out, out, out, unused, 1.0)
    kind: Epilogue = "store" if alpha == 1.0 else "scale"
    addend = out
    if c is not None:
        kind = "accumulate" if c is d else "add"
        addend = operands.unit_rows(c)
    name = operands.OUT[d.dtype]
    if head_splits is None:
        return Store(kind, name, out, addend, addend, unused, alpha)
    left, middle, right = head_splits
    run = run_of(left, right)
    return Store(
        "heads",
        name,
        out,
        addend,
        addend,
        unused,
        1.0,
        run=run,
        head=(left + right, middle, right),
    )


def _quantise(d: Tensor, epilogue: FP8CastWithClamp, unused: Tensor) -> Store:
    scales, out = operands.output(epilogue.sfd.mT), d.view(torch.uint8)
    if d.dim() == 3:
        scales = scales.unflatten(0, (d.shape[0], -1))
    limit = epilogue.clamp_value
    counts = epilogue.clamped_count is not None and limit is not None
    count = unused
    if counts:
        assert epilogue.clamped_count is not None
        count = epilogue.clamped_count.view(torch.int32).view(1).zero_()
    return Store(
        "quantise",
        "uint8",
        out,
        out,
        scales,
        count,
        math.inf if limit is None else limit,
        sfd=_WORDS[epilogue.sfd.dtype],
        counts_clamped=counts,
    )


def run_of(left: int, right: int) -> int:
    """Return how many columns always stay together: the largest power of two that divides both, at most 128; 0 below 16."""
    run = 128
    while run >= _RUN and (left % run or right % run):
        run //= 2
    return run if run >= _RUN else 0
