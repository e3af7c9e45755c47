"""What the program of the GEMM grouped along K with ranges of rows is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from .gemm_variant import GemmVariant


@dataclass(frozen=True, slots=True)
class GatheredKVariant:
    """One compiled form.

    Attributes:
        gemm: the form of one tile; operands MN-major and without scales.
    """

    gemm: GemmVariant
