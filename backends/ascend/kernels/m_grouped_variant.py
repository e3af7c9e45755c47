"""What the program of the GEMM grouped along M is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .gemm_variant import GemmVariant


@dataclass(frozen=True, slots=True)
class MGroupedVariant:
    """One compiled form of the GEMM grouped along M.

    Attributes:
        gemm: the form of one tile.
        layout: what says which rows are whose (see `GroupLayout`).
        alignment: of group starts, in rows; for labelled rows a multiple of the tile's, so that a tile lies in one group.
    """

    gemm: GemmVariant
    layout: Literal["index", "psum", "masked"]
    alignment: int
