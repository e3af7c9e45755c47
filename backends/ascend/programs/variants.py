"""What each program is specialised on beside the dense GEMM, whose variant is in gemm_variant.py. Plain data: no TileLang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .gemm_variant import GemmVariant

#: Elements of the scales a transform reads.
ScaleSource = Literal["float32", "uint8", "int16", "int32"]
#: Which rows of scales are read. all: every one. psum, masked, index: those of groups along the rows (`GroupLayout`).
ScaleRows = Literal["all", "psum", "masked", "index"]


@dataclass(frozen=True, slots=True)
class BatchedVariant:
    """One compiled form of a batch of GEMMs.

    Attributes:
        gemm: the form of one tile.
        sums_batch: one D receives the sum of all products.
    """

    gemm: GemmVariant
    sums_batch: bool


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


@dataclass(frozen=True, slots=True)
class SumSplitsVariant:
    """One compiled form of the sum.

    Attributes:
        splits: how many parts there are.
        out: TileLang dtype of D.
        block: elements one vector core adds up at a time.
        num_cores: launched vector cores.
    """

    splits: int
    out: str
    block: int
    num_cores: int


@dataclass(frozen=True, slots=True)
class ZeroGapsVariant:
    """One compiled form.

    Attributes:
        out: TileLang dtype of D.
        alignment: of group starts, in rows.
        block: columns one vector core zeroes at a time.
        num_cores: launched vector cores.
    """

    out: str
    alignment: int
    block: int
    num_cores: int


@dataclass(frozen=True, slots=True)
class GatherRowsVariant:
    """One compiled form.

    Attributes:
        block: columns one vector core moves at a time.
        num_cores: launched vector cores.
    """

    block: int
    num_cores: int


@dataclass(frozen=True, slots=True)
class ScalesVariant:
    """One compiled form of the scale transform.

    Attributes:
        source: what an element of the source is: the bits of a float32, or one (uint8), two (int16) or four exponents.
        is_k_major: source stored [groups, rows, columns], else [groups, columns, rows].
        repeat: blocks of 32 along K that share one scale: 1 or 4.
        has_blocks: whether several rows share one scale (gran_mn > 1).
        rows: which rows are read; the others become 0.
        masks_k: whether blocks along K that lie in no group (prefix sums along K) become 0.
        block_mn, block_words: rows and words one vector core converts at a time.
        num_cores: launched vector cores.
    """

    source: ScaleSource
    is_k_major: bool
    repeat: int
    has_blocks: bool
    rows: ScaleRows
    masks_k: bool
    block_mn: int
    block_words: int
    num_cores: int


@dataclass(frozen=True, slots=True)
class KGroupedScalesVariant:
    """One compiled form of the move of scales that stand group after group along K.

    Attributes:
        source: the bits of a float32, or words of four exponents, every group starting a new one.
        is_k_first: source stored [rows along K, mn], else [mn, rows].
        layout: what says which K are whose (see `KGroupLayout`).
        block_mn, block_words: rows of the matrix and words one vector core fills at a time.
        num_cores: launched vector cores.
    """

    source: Literal["float32", "int32"]
    is_k_first: bool
    layout: Literal["plain", "psum"]
    block_mn: int
    block_words: int
    num_cores: int
