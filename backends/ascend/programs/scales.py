"""The TileLang program that brings block scales into the form GEMM kernels read, on the vector cores.

Importing this module imports TileLang. Which variant a tensor of scales needs is decided in scales.py.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .gemm_variant import SCALE_BLOCK
from .scale_steps import exponent_of_bits
from .variants import ScalesVariant
from .vector_steps import THREADS

_PER_WORD = {"float32": 1, "uint8": 1, "int16": 2, "int32": 4}


def build(variant: ScalesVariant) -> Any:
    """Return the prim_func (source, layout, k_ends, words, is_bad, blocks, gran_mn, alignment, k_alignment).

    source holds int32 (float32 bits, or words of four exponents), int16 or uint8, with unit stride along K or the rows.
    words [groups, ceil(blocks / 2), mn] receives two exponents an element, the first block of 32 along K in the low byte.
    Blocks past `blocks`, and rows or blocks of no group, become 0; a float32 scale that is no power of two from 2^-127 to
    2^127 (zero counts as byte 0) becomes 255, NaN, and sets is_bad[0]. layout and k_ends are group layouts along the rows
    and along K, one unused element each without.
    """
    cores, bm, bw = variant.num_cores, variant.block_mn, variant.block_words
    dtype = "int32" if variant.source == "float32" else variant.source
    per_element = _PER_WORD[variant.source] * variant.repeat  # blocks of 32 in one element of the source
    columns = 2 * bw // per_element
    G, R, C, MN, W, L, E = (T.dynamic(name) for name in ("G", "R", "C", "MN", "W", "L", "E"))
    group_pitch, pitch = T.dynamic("group_pitch"), T.dynamic("pitch")
    stored = (G, R, C) if variant.is_k_major else (G, C, R)
    source_type = T.StridedTensor(stored, (group_pitch, pitch, 1), dtype)

    @T.prim_func
    def scale_words(
        source: source_type,
        layout: T.Tensor((L,), "int32"),
        k_ends: T.Tensor((E,), "int32"),
        words: T.Tensor((G, W, MN), "int16"),
        is_bad: T.Tensor((1,), "int32"),
        blocks: T.int32,
        gran_mn: T.int32,
        alignment: T.int32,
        k_alignment: T.int32,
    ):
        with T.Kernel(cores) as core:
            tile = T.alloc_shared((bm, columns) if variant.is_k_major else (columns, bm), dtype)
            packed = T.alloc_shared((bw, bm), "int16")
            reads_row = T.alloc_shared((bm,), "int32")
            reads_block = T.alloc_shared((2 * bw,), "int32")
            strips = T.ceildiv(MN, bm)
            steps = T.ceildiv(W, bw)
            for step in range(T.ceildiv(G * steps * strips - core, cores)):
                group = T.alloc_var("int32")
                word = T.alloc_var("int32")
                mn = T.alloc_var("int32")
                row = T.alloc_var("int32")
                column = T.alloc_var("int32")
                group = (step * cores + core) // (steps * strips)
                word = (step * cores + core) // strips % steps * bw
                mn = (step * cores + core) % strips * bm
                row = mn // gran_mn if variant.has_blocks else mn
                column = word * 2 // per_element
                T.assume(group >= 0 and group < G)
                T.assume(word >= 0 and word < W)
                T.assume(mn >= 0 and mn < MN)
                T.assume(row >= 0 and row < R)
                T.assume(column >= 0 and column < C)
                if variant.is_k_major:
                    T.copy(source[group, row : row + bm, column : column + columns], tile)
                else:
                    T.copy(source[group, column : column + columns, row : row + bm], tile)
                with T.SimtVF(threads=THREADS):
                    if variant.rows != "all":
                        for i in T.Parallel(bm):
                            _find_row(variant, layout, L, group, mn + i, alignment, reads_row, i)
                    if variant.masks_k:
                        for j in T.Parallel(2 * bw):
                            _find_in_ranges(k_ends, E, (word * 2 + j) * SCALE_BLOCK, k_alignment, reads_block, j)
                    for j, i in T.Parallel(bw, bm):
                        exponents = T.alloc_var("int32")
                        source_row = T.alloc_var("int32")
                        is_read = T.alloc_var("int32")
                        exponents = 0
                        source_row = (mn + i) // gran_mn - row if variant.has_blocks else i
                        is_read = T.if_then_else(mn + i < MN, 1, 0)
                        if variant.rows != "all":
                            is_read = is_read * reads_row[i]
                        if is_read != 0:
                            _put(variant, tile, source_row, j, 0, blocks - word * 2, reads_block, exponents, is_bad)
                            _put(variant, tile, source_row, j, 1, blocks - word * 2, reads_block, exponents, is_bad)
                        packed[j, i] = T.cast(exponents, "int16")
                T.copy(packed, words[group, word : word + bw, mn : mn + bm])

    return scale_words


@T.macro
def _find_row(
    variant: ScalesVariant, layout: Any, length: Any, group: Any, row: Any, alignment: Any, found: Any, place: Any
) -> None:
    """found[place] = whether `row` belongs to a group of `layout`."""
    if variant.rows == "psum":
        _find_in_ranges(layout, length, row, alignment, found, place)
    if variant.rows == "masked":
        found[place] = T.if_then_else(row < layout[group], 1, 0)
    if variant.rows == "index":
        found[place] = T.if_then_else(row < length, T.if_then_else(layout[T.min(row, length - 1)] >= 0, 1, 0), 0)


@T.macro
def _find_in_ranges(ends: Any, length: Any, position: Any, alignment: Any, found: Any, place: Any) -> None:
    """found[place] = whether `position` lies in [align(ends[g - 1], alignment), ends[g]) for some g."""
    start = T.alloc_var("int32")
    is_in = T.alloc_var("int32")
    start = 0
    is_in = 0
    for g in T.serial(length):
        is_in = T.if_then_else(position >= start, T.if_then_else(position < ends[g], 1, is_in), is_in)
        start = T.ceildiv(ends[g], alignment) * alignment
    found[place] = is_in


@T.macro
def _put(
    variant: ScalesVariant,
    tile: Any,
    row: Any,
    word: Any,
    half: Any,
    blocks: Any,
    reads_block: Any,
    exponents: T.Ref,
    is_bad: Any,
) -> None:
    """Put the exponent of block 2 * word + half of a row of the tile in byte `half` of `exponents`, if it is read."""
    block = T.alloc_var("int32")
    is_read = T.alloc_var("int32")
    block = word * 2 + half
    is_read = T.if_then_else(block < blocks, 1, 0)
    if variant.masks_k:
        is_read = is_read * reads_block[block]
    if is_read != 0:
        scale = T.alloc_var("int32")
        element = T.alloc_var("int32")
        scale = block // variant.repeat
        if variant.is_k_major:
            element = T.cast(tile[row, scale // _PER_WORD[variant.source]], "int32")
        else:
            element = T.cast(tile[scale // _PER_WORD[variant.source], row], "int32")
        if variant.source == "float32":
            exponent_of_bits(element, is_bad)
        else:
            element = (element >> (scale % _PER_WORD[variant.source] * 8)) & 255
        exponents = exponents | (element << (half * 8))
