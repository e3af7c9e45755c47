"""What the program of batched GEMMs is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from .gemm_variant import GemmVariant


@dataclass(frozen=True, slots=True)
class BatchedVariant:
    """One compiled form of a batch of GEMMs.

    Attributes:
        gemm: the form of one tile.
        sums_batch: one D receives the sum of all products.
    """

    gemm: GemmVariant
    sums_batch: bool
