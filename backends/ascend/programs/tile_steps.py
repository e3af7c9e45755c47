"""What every GEMM program does with a tile: multiply, then store. Importing this module imports TileLang."""

# mypy: ignore-errors
# TileLang rewrites macros from their source: assignments declare buffers and variables.

from dataclasses import dataclass
from typing import Any

import tilelang.ascend.language as T

from .epilogue_steps import Halves, Outputs, epilogue_tiles, store_tile
from .gemm_steps import OnChip, Place, Source, multiply_tile, on_chip_tiles
from .gemm_variant import GemmVariant


@dataclass(frozen=True, eq=False)
class Buffers:
    """All a block works with on chip: streamed tiles, the accumulator in L0C, and what an epilogue needs in UB."""

    streamed: OnChip
    c0: Any
    halves: Halves


@T.macro
def buffers_of(variant: GemmVariant, vector_core: Any) -> Buffers:
    """Allocate the buffers of a block.

    Args:
        vector_core: which of the block's two this is, as `T.MixedKernel` tells it.
    """
    streamed = on_chip_tiles(variant, vector_core)
    c0 = T.alloc_l0c((variant.tiles.m, variant.tiles.n), "float32")
    halves = epilogue_tiles(variant, vector_core)
    return Buffers(streamed, c0, halves)


@T.macro
def compute_tile(variant: GemmVariant, buffers: Buffers, source: Source, outputs: Outputs, at: Place) -> None:
    """Store the epilogue of the product of the tile of D at `at`, which exists."""
    T.assume(at.m >= 0 and at.m < outputs.d.buffer.shape[-2])
    T.assume(at.n >= 0 and at.n < outputs.columns)
    multiply_tile(variant, buffers.streamed, buffers.c0, source, outputs.d, at)
    store_tile(variant, buffers.c0, buffers.halves, outputs, at)
