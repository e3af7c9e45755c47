"""What the scale program is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["float32", "int16", "int32"]
#: Which rows are read. all: every one. psum, masked, index: those of groups along the rows (`GroupLayout`).
Rows = Literal["all", "psum", "masked", "index"]


@dataclass(frozen=True, slots=True)
class ScalesVariant:
    """One compiled form of the scale transform.

    Attributes:
        source: what an element of the source is: the bits of a float32, or a word of two (int16) or four exponents.
        is_k_major: source stored [groups, rows, columns], else [groups, columns, rows].
        repeat: blocks of 32 along K that share one scale: 1 or 4.
        has_blocks: whether several rows share one scale (gran_mn > 1).
        rows: which rows are read; the others become 0.
        masks_k: whether blocks along K that lie in no group (prefix sums along K) become 0.
        block_mn, block_words: rows and words one vector core converts at a time.
        num_cores: launched vector cores.
    """

    source: Source
    is_k_major: bool
    repeat: int
    has_blocks: bool
    rows: Rows
    masks_k: bool
    block_mn: int
    block_words: int
    num_cores: int
