"""The TileLang program that moves scales standing group after group along K to the positions of the data.

Runs on the vector cores. Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .gemm_variant import SCALE_BLOCK
from .scale_steps import NAN, exponent_of_bits
from .variants import KGroupedScalesVariant
from .vector_steps import THREADS

_OUTSIDE = -1


def build(variant: KGroupedScalesVariant) -> Any:
    """Return the prim_func (source, layout, words, is_bad, gran_k, alignment).

    source [R, MN], or [MN, R], holds float32 bits, one row per scale along K, or words of four, every group starting a
    new one. words [W, MN] receives two exponents an element, the first block of 32 along K in the low byte; blocks of
    no group become 0. With prefix sums R says whether groups own rows for their size rounded up to the alignment (exactly
    as many float32 rows, or at least as many words) or for the size itself. A row past R and a float32 scale that is no
    power of two become 255, NaN, and set is_bad[0].
    """
    cores, bm, bw = variant.num_cores, variant.block_mn, variant.block_words
    R, MN, W, G, pitch = (T.dynamic(name) for name in ("R", "MN", "W", "G", "pitch"))
    stored = (R, MN) if variant.is_k_first else (MN, R)

    @T.prim_func
    def k_grouped_scale_words(
        source: T.StridedTensor(stored, (pitch, 1), "int32"),
        layout: T.Tensor((G,), "int32"),
        words: T.Tensor((W, MN), "int16"),
        is_bad: T.Tensor((1,), "int32"),
        gran_k: T.int32,
        alignment: T.int32,
    ):
        with T.Kernel(cores) as core:
            packed = T.alloc_shared((bw, bm), "int16")
            places = T.alloc_shared((2 * bw,), "int32")
            strips = T.ceildiv(MN, bm)
            for step in range(T.ceildiv(T.ceildiv(W, bw) * strips - core, cores)):
                word = T.alloc_var("int32")
                mn = T.alloc_var("int32")
                word = (step * cores + core) // strips * bw
                mn = (step * cores + core) % strips * bm
                T.assume(word >= 0 and word < W)
                T.assume(mn >= 0 and mn < MN)
                with T.SimtVF(threads=THREADS):
                    for j in T.Parallel(2 * bw):
                        _find_place(variant, layout, G, R, (word * 2 + j) * SCALE_BLOCK, gran_k, alignment, places, j)
                    for j, i in T.Parallel(bw, bm):
                        exponents = T.alloc_var("int32")
                        low = T.alloc_var("int32")
                        high = T.alloc_var("int32")
                        exponents = 0
                        low = places[2 * j]
                        high = places[2 * j + 1]
                        if mn + i < MN:
                            _put(variant, source, R, low, mn + i, 0, exponents, is_bad)
                            _put(variant, source, R, high, mn + i, 1, exponents, is_bad)
                        packed[j, i] = T.cast(exponents, "int16")
                T.copy(packed, words[word : word + bw, mn : mn + bm])

    return k_grouped_scale_words


@T.macro
def _find_place(
    variant: KGroupedScalesVariant,
    layout: Any,
    num_groups: Any,
    rows: Any,
    position: Any,
    gran_k: Any,
    alignment: Any,
    places: Any,
    index: Any,
) -> None:
    """places[index] = 4 * row + byte of the scale of K element `position`, or _OUTSIDE."""
    per_row = 4 if variant.source == "int32" else 1
    start = T.alloc_var("int32")
    size = T.alloc_var("int32")
    unit = T.alloc_var("int32")
    row = T.alloc_var("int32")
    place = T.alloc_var("int32")
    found = T.alloc_var("int32")
    unit = 1
    if variant.layout == "psum":
        start = 0
        row = 0
        for g in T.serial(num_groups):
            size = T.max(layout[g] - start, 0)
            row = row + T.ceildiv(T.ceildiv(T.ceildiv(size, alignment) * alignment, gran_k), per_row)
            start = T.ceildiv(layout[g], alignment) * alignment
        if variant.source == "int32":
            unit = T.if_then_else(rows >= row, alignment, 1)
        else:
            unit = T.if_then_else(rows == row, alignment, 1)
    start = 0
    row = 0
    found = _OUTSIDE
    for g in T.serial(num_groups):
        size = T.max(layout[g] - start, 0) if variant.layout == "psum" else layout[g]
        place = T.max(position - start, 0) // gran_k
        place = (row + place // per_row) * 4 + place % per_row
        found = T.if_then_else(position >= start, T.if_then_else(position < start + size, place, found), found)
        row = row + T.ceildiv(T.ceildiv(T.ceildiv(size, unit) * unit, gran_k), per_row)
        start = T.ceildiv(layout[g], alignment) * alignment if variant.layout == "psum" else start + size
    places[index] = found


@T.macro
def _put(
    variant: KGroupedScalesVariant,
    source: Any,
    rows: Any,
    place: Any,
    mn: Any,
    half: Any,
    exponents: T.Ref,
    is_bad: Any,
) -> None:
    """Put the exponent at `place` of column `mn` in byte `half` of `exponents`, if it belongs to a group."""
    if place >= 0:
        element = T.alloc_var("int32")
        element = NAN
        if place // 4 < rows:
            if variant.is_k_first:
                element = source[place // 4, mn]
            else:
                element = source[mn, place // 4]
            if variant.source == "float32":
                exponent_of_bits(element, is_bad)
            else:
                element = (element >> (place % 4 * 8)) & 255
        else:
            T.atomic_max(is_bad[0], 1)
        exponents = exponents | (element << (half * 8))
