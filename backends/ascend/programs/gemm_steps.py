"""The product of a tile: operands from GM through L1 and L0 into the accumulator. Importing this module imports TileLang."""

# mypy: ignore-errors
# TileLang rewrites macros from their source: assignments declare buffers and variables.

from dataclasses import dataclass, replace
from typing import Any

import tilelang.ascend.language as T

from .fp4_steps import Codes, code_tiles, expand_tile
from .gemm_variant import FRACTAL, PAIR, STREAMED_VERSIONS, GemmVariant
from .gm_steps import DTYPES, Matrix


@dataclass(frozen=True, eq=False)
class Source:
    """What a tile is made of: operands [mn, k] or, where K is not contiguous, [k, mn]; scales [ceil(k / 64), mn].

    With `entries` the matrices have an axis of that size more in front, and the tile is the sum over it.
    """

    a: Matrix
    b: Matrix
    sa: Matrix
    sb: Matrix
    entries: Any = None

    def entry(self, index: Any) -> "Source":
        """Return what one entry adds."""
        return Source(*(Matrix(one.buffer, (*one.index, index)) for one in (self.a, self.b, self.sa, self.sb)))


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tile lies: its first row in A and in B, the start of its range of K, a multiple of 64, and how long that is.

    Not arguments of the macros: those would be copied into new variables, of which the compiler knows less.

    Attributes:
        scales_start: where the scales of the range start; given if K goes on behind the range (groups along K), so that
            products must stop there, rounded up to a multiple of 64.
    """

    m: Any
    n: Any
    k: Any
    depth: Any
    scales_start: Any = None

    @property
    def is_part_of_k(self) -> bool:
        return self.scales_start is not None


@dataclass(frozen=True, eq=False)
class OnChip:
    """Tiles of A and B in L1 (stored shape) and L0 (rows, k), of their scales (None if there are none) and of FP4 codes."""

    a1: Any
    b1: Any
    a0: Any
    b0: Any
    sa1: Any = None
    sb1: Any = None
    sa0: Any = None
    sb0: Any = None
    codes: tuple[Codes, ...] = ()

    def streamed(self) -> list[Any]:
        """Return the tiles of L1 and L0."""
        return [tile for name, tile in vars(self).items() if name != "codes" and tile is not None]

    def in_ub(self) -> list[Any]:
        """Return the tiles of FP4 codes and of their values."""
        return [tile for one in self.codes for tile in (one.packed, one.values)]


@dataclass(frozen=True, eq=False)
class Extent:
    """How many rows of a tile the cube reads: `size`, or fewer where a variable says so."""

    size: int
    present: Any = None

    @property
    def all(self) -> slice:
        """The rows as a slice whose bound the compiler can prove."""
        whole = self.present is None or self.size == FRACTAL
        return slice(None) if whole else slice(0, T.min(self.present, self.size))


@dataclass(frozen=True, eq=False)
class Used:
    """The part of a tile of D that the cube works on."""

    m: Extent
    n: Extent


@dataclass(frozen=True, eq=False)
class Span:
    """One step along K within an L1 tile, in pairs of blocks of 32: the index of the step and how many pairs are left.

    Attributes:
        is_whole: what is left does not matter, because zeros follow.
    """

    step: Any
    size: int
    left: Any
    is_whole: bool

    @property
    def pairs(self) -> Any:
        """How many there are, with a bound the compiler can prove."""
        return self.size if self.is_whole else T.min(self.left, self.size)

    @property
    def in_l1(self) -> slice:
        return slice(self.step * self.size * PAIR, (self.step * self.size + self.pairs) * PAIR)

    @property
    def in_l0(self) -> slice:
        return slice(0, self.pairs * PAIR)

    @property
    def scales_in_l1(self) -> slice:
        return slice(self.step * self.size, self.step * self.size + self.pairs)

    @property
    def scales_in_l0(self) -> slice:
        return slice(0, self.pairs)


@T.macro
def on_chip_tiles(variant: GemmVariant, vector_core: Any) -> OnChip:
    """Allocate the streamed tiles.

    Args:
        vector_core: which of the block's two this is, as `T.MixedKernel` tells it.
    """
    bm, bn, bk, step = variant.tiles.m, variant.tiles.n, variant.tiles.k, variant.tiles.k_step
    element = DTYPES[variant.element]
    a1 = T.alloc_l1((bm, bk) if variant.a_is_k_major else (bk, bm), element)
    b1 = T.alloc_l1((bn, bk) if variant.b_is_k_major else (bk, bn), element)
    a0 = T.alloc_l0a((bm, step), element)
    b0 = T.alloc_l0b((bn, step), element)
    tiles = OnChip(a1, b1, a0, b0)
    if variant.is_scaled:
        sa1 = T.alloc_l1((bm, bk // PAIR), "int16")
        sb1 = T.alloc_l1((bn, bk // PAIR), "int16")
        sa0 = T.alloc_l0a_sf(a0, sf_dtype="int16")
        sb0 = T.alloc_l0b_sf(b0, sf_dtype="int16")
        tiles = OnChip(a1, b1, a0, b0, sa1, sb1, sa0, sb0)
    T.annotate_buffer_versions(dict.fromkeys(tiles.streamed(), STREAMED_VERSIONS))
    tiles = replace(tiles, codes=tuple(code_tiles(one, variant.tiles, vector_core) for one in variant.packed))
    return tiles


@T.macro
def multiply_tile(variant: GemmVariant, tiles: OnChip, c0: Any, source: Source, D: Matrix, at: Place) -> None:
    """c0 = the product of the tile of D at `at`.

    Operands keep their stored shape in L1; the copy to L0 transposes where K is not contiguous, so that the
    multiplication is always NT. Scale tiles have no filling with zeros: the multiplication of scaled operands runs over
    valid pairs only.
    """
    bk, step_k = variant.tiles.k, variant.tiles.k_step
    step_pairs = step_k // PAIR
    used = Used(Extent(variant.tiles.m), Extent(variant.tiles.n))
    if variant.trims_tiles:
        rows = T.alloc_var("int32")
        columns = T.alloc_var("int32")
        rows = trimmed(D, -2, at.m)
        columns = trimmed(D, -1, at.n)
        used = Used(Extent(variant.tiles.m, rows), Extent(variant.tiles.n, columns))
    steps = T.ceildiv(at.depth, bk)
    for outer in T.Pipelined(steps if source.entries is None else steps * source.entries, num_stages=2):
        part = source if source.entries is None else source.entry(outer // steps)
        done = outer * bk if source.entries is None else outer % steps * bk
        _expand(variant, tiles, part, at, at.k + done)
        with T.Task():
            _load(variant, tiles, part, at, done)
        pairs = T.min(T.ceildiv(at.depth - done, PAIR), bk // PAIR)
        for inner in T.Pipelined(T.ceildiv(pairs, step_pairs), num_stages=2):
            left = T.ceildiv(at.depth - done, PAIR) - inner * step_pairs
            is_last = done + (inner + 1) * step_k >= at.depth
            if source.entries is not None:
                is_last = is_last and outer >= steps * (source.entries - 1)
            span = Span(inner, step_pairs, left, not (variant.is_scaled or at.is_part_of_k))
            always_conflict(*tiles.streamed(), *tiles.in_ub(), c0)
            _multiply(variant, tiles, c0, used, span, outer + inner == 0, unit_flag(variant, is_last))


def always_conflict(*tiles: Any) -> None:
    """Tell the scheduler, for the loops around this place, that any two accesses of a tile conflict, a write being among them.

    It finds the same without being told, but asks a theorem prover about every pair of accesses, which takes half of all
    lowering time.
    """
    for tile in tiles:
        T.evaluate(T.assume_conflict(tile))


@T.macro
def _load(variant: GemmVariant, tiles: OnChip, source: Source, at: Place, done: Any) -> None:
    """GM -> L1: whole tiles of both operands (packed ones take another way) and their scales, `done` elements behind the
    start of K.
    """
    bm, bn, bk = variant.tiles.m, variant.tiles.n, variant.tiles.k
    k = at.k + done
    if not variant.is_packed("a"):
        T.copy(source.a.block(at.m, bm, k, bk) if variant.a_is_k_major else source.a.block(k, bk, at.m, bm), tiles.a1)
    if not variant.is_packed("b"):
        T.copy(source.b.block(at.n, bn, k, bk) if variant.b_is_k_major else source.b.block(k, bk, at.n, bn), tiles.b1)
    if variant.is_scaled:
        pair = (at.scales_start + done if at.is_part_of_k else k) // PAIR
        T.copy(source.sa.block(pair, bk // PAIR, at.m, bm), tiles.sa1, transpose=True)
        T.copy(source.sb.block(pair, bk // PAIR, at.n, bn), tiles.sb1, transpose=True)


def _expand(variant: GemmVariant, tiles: OnChip, source: Source, at: Place, k: Any) -> None:
    """GM -> L1: tiles of packed operands."""
    for packed, codes in zip(variant.packed, tiles.codes, strict=True):
        matrix, mn, tile = (source.a, at.m, tiles.a1) if packed.operand == "a" else (source.b, at.n, tiles.b1)
        rows, columns = packed.stored_tile(variant.tiles)
        stored_rows, stored_columns = matrix.buffer.shape[-2], 2 * matrix.buffer.shape[-1]
        left = at.k + at.depth - k
        if at.is_part_of_k:  # the range of an empty group lies behind the operand
            left = T.min(left, (stored_columns if packed.is_k_major else stored_rows) - k)
        if packed.is_k_major:
            region, valid = matrix.block(mn, rows, k // 2, columns // 2), (stored_rows - mn, left)
        else:
            region, valid = matrix.block(k, rows, mn // 2, columns // 2), (left, stored_columns - mn)
        expand_tile(packed, variant.tiles, codes, region, tile, valid)


def trimmed(D: Matrix, axis: int, start: Any) -> Any:
    """Return how many rows (axis -2) or columns of D there are from `start` on, in whole fractals."""
    return T.ceildiv(D.buffer.shape[axis] - start, FRACTAL) * FRACTAL


def unit_flag(variant: GemmVariant, is_last: Any) -> dict[str, Any]:
    """Return the unit flag of a multiply or store: 3 on the last one of a tile, which hands it over part by part."""
    if not variant.trims_tiles:
        return {}
    return {"unit_flag_ctrl": 3 if is_last is True else T.if_then_else(is_last, 3, 2)}


@T.macro
def _stage(tile: Any, staged: Any, is_k_major: bool, rows: Extent, span: Span) -> None:
    """L1 -> L0: one step along K."""
    if is_k_major:
        T.copy(tile[rows.all, span.in_l1], staged[rows.all, span.in_l0])
    else:
        T.copy(tile[span.in_l1, rows.all], staged[rows.all, span.in_l0], transpose=True)


@T.macro
def _multiply(
    variant: GemmVariant, tiles: OnChip, c0: Any, used: Used, span: Span, is_first: Any, flag: dict[str, Any]
) -> None:
    """L1 -> L0 and c0 (+)= a0 @ b0.T for one step along K."""
    _stage(tiles.a1, tiles.a0, variant.a_is_k_major, used.m, span)
    _stage(tiles.b1, tiles.b0, variant.b_is_k_major, used.n, span)
    if variant.is_scaled:
        T.copy(tiles.sa1[used.m.all, span.scales_in_l1], tiles.sa0[used.m.all, span.scales_in_l0])
        T.copy(tiles.sb1[used.n.all, span.scales_in_l1], tiles.sb0[used.n.all, span.scales_in_l0])
        T.gemm_blockscaled(
            tiles.a0[used.m.all, span.in_l0],
            tiles.b0[used.n.all, span.in_l0],
            c0[used.m.all, used.n.all],
            tiles.sa0[used.m.all, span.scales_in_l0],
            tiles.sb0[used.n.all, span.scales_in_l0],
            transpose_B=True,
            clear_accum=is_first,
            **flag,
        )
    else:
        T.gemm(
            tiles.a0[used.m.all, span.in_l0],
            tiles.b0[used.n.all, span.in_l0],
            c0[used.m.all, used.n.all],
            transpose_B=True,
            clear_accum=is_first,
            **flag,
        )
