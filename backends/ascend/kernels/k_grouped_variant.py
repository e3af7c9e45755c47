"""What the program of the GEMM grouped along K is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .gemm_variant import GemmVariant


@dataclass(frozen=True, slots=True)
class KGroupedVariant:
    """One compiled form of the GEMM grouped along K.

    Attributes:
        gemm: the form of one tile.
        layout: what says which K are whose (see `KGroupLayout`).
        alignment: of group starts in the psum layout; a multiple of 64.
    """

    gemm: GemmVariant
    layout: Literal["plain", "psum"]
    alignment: int
