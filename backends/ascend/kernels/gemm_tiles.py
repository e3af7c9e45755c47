"""Tile sizes of every GEMM: a pure function of the problem's shape, with memory limits by formula.

The costs are a coarse model for choosing between tiles, not a prediction of run time (the simulator makes those).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from ..programs.gemm_variant import ELEMENT_BITS, PAIR, SCALE_BLOCK, STREAMED_VERSIONS, GemmForm, Tiles

#: Bytes of the on-chip memories of one cube core and, for UB, of one vector core beside its SIMT data cache.
CAPACITY = {"L1": 512 * 1024, "L0A": 64 * 1024, "L0B": 64 * 1024, "L0C": 256 * 1024, "UB": 216 * 1024}

_SHAPES = ((256, 256), (128, 256), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64), (32, 256), (16, 256))
_SIDES = tuple(range(16, 257, 16))
_STEP_BYTES = 128  # along K per L1 -> L0 step: two versions of 256 rows fill L0
_DEPTHS = (256, 512, 768, 1024, 2048)  # bytes along K per GM -> L1 step; small tiles need deep ones to hide the latency
_USUAL_DEPTH = 512
# Cycles from which any tile is considered; below, the usual few keep the number of kernels small.
_WORTH_SEARCHING = 8000

# What the costs below assume of one core, and of all cores together.
_GM_BYTES_PER_CYCLE = 100
_GM_LATENCY = 800
_GM_SHARED_BYTES_PER_CYCLE = 2100
_L1_BYTES_PER_CYCLE = 256
_MAC_BITS_PER_CYCLE = 16 * 16 * 16 * 16  # 4096 MAC of 16 bits; half the bits, twice the MAC
_STORE_BYTES_PER_CYCLE = 128
_TILE_CYCLES = 200  # what filling and draining the pipes leaves exposed per tile


@dataclass(frozen=True, slots=True)
class Sizes:
    """Products that are computed together: `copies` (groups, batch entries, parts of K) of [m, k] @ [n, k].T."""

    m: int
    n: int
    k: int
    copies: int = 1


def footprint(form: GemmForm, tiles: Tiles) -> dict[str, int]:
    """Return the bytes each on-chip memory needs, all buffer versions counted."""
    bits, epilogue = ELEMENT_BITS[form.element], form.epilogue
    data = (tiles.m + tiles.n) * tiles.k * bits // 8
    scales = (tiles.m + tiles.n) * (tiles.k // PAIR) * 2 if form.is_scaled else 0
    half = tiles.m // 2 * tiles.n  # the two vector cores share the rows of a tile
    product = 0 if epilogue == "store" else 4
    stored = {"store": 0, "add": 2, "accumulate": 2}.get(epilogue, 1) * form.out_bytes
    scale_bytes = half // SCALE_BLOCK if epilogue == "quantise" else 0
    expanded = sum(math.prod(shape) for one in form.packed for shape in one.ub_shapes(tiles))
    return {
        "L1": STREAMED_VERSIONS * (data + scales),
        "L0A": STREAMED_VERSIONS * tiles.m * tiles.k_step * bits // 8,
        "L0B": STREAMED_VERSIONS * tiles.n * tiles.k_step * bits // 8,
        "L0C": tiles.m * tiles.n * 4,
        "UB": half * (product + stored) + scale_bytes + STREAMED_VERSIONS * expanded,
    }


def fits(form: GemmForm, tiles: Tiles) -> bool:
    """Return whether all buffers of a kernel fit on chip."""
    needed = footprint(form, tiles)
    return all(needed[memory] <= limit for memory, limit in CAPACITY.items())


def candidates(form: GemmForm) -> list[Tiles]:
    """Return all tile sizes that may be worth trying and fit on chip."""
    return _tiles(form, tuple((m, n) for m in _SIDES for n in _SIDES), _DEPTHS)


def _tiles(form: GemmForm, shapes: tuple[tuple[int, int], ...], depths: tuple[int, ...]) -> list[Tiles]:
    bits, rows = ELEMENT_BITS[form.element], form.row_multiple
    found = [
        Tiles(m, n, depth * 8 // bits, max(PAIR, _STEP_BYTES * 8 // bits))
        for m, n in shapes
        if m % rows == n % rows == n % form.column_multiple == 0
        for depth in depths
    ]
    return [one for one in found if fits(form, one)]


def cost(form: GemmForm, sizes: Sizes, tiles: Tiles) -> float:
    """Return cycles of the busiest core, no less than what all cores together need to read the operands once."""
    m, n, k, copies = sizes.m, sizes.n, sizes.k, sizes.copies
    bits = ELEMENT_BITS[form.element]
    operand_bits = {"a": bits, "b": bits} | {one.operand: ELEMENT_BITS["fp4"] for one in form.packed}
    rows, columns = min(tiles.m, -(-m // 16) * 16), min(tiles.n, -(-n // 16) * 16)
    depth = min(tiles.k, k)
    a_bytes, b_bytes = rows * depth * operand_bits["a"] / 8, columns * depth * operand_bits["b"] / 8
    loading = (a_bytes + b_bytes) / _GM_BYTES_PER_CYCLE
    staging = (rows + columns) * depth * bits / 8 / _L1_BYTES_PER_CYCLE
    multiplying = max(rows * columns * depth * bits / _MAC_BITS_PER_CYCLE, staging)
    # Two L1 versions: a load starts when the step before the last has been used up.
    step = max(loading, multiplying, (loading + multiplying + _GM_LATENCY) / 2)
    storing = rows * columns * 2 / _STORE_BYTES_PER_CYCLE
    rounds = -(-(copies * -(-m // tiles.m) * -(-n // tiles.n)) // form.num_cores)
    one = max(-(-k // tiles.k) * step, storing) + _TILE_CYCLES
    shared = copies * (m * operand_bits["a"] + n * operand_bits["b"]) * k / 8 / _GM_SHARED_BYTES_PER_CYCLE
    return max(rounds * one, shared) + loading + storing + _GM_LATENCY


def row_class(m: int) -> int:
    """Return the M that stands for all up to it and above the class before: a power of two."""
    return max(16, 1 << (m - 1).bit_length())


@functools.lru_cache(maxsize=4096)
def choose(form: GemmForm, sizes: Sizes, within: int | None = None) -> Tiles:
    """Return the cheapest tile sizes that fit; the smallest of equally cheap ones.

    M counts as the next power of two, so that a kernel serves many M. No choice depends on how K is stepped through
    within a tile: that is the same for all tiles of an element format, so that a row of D does not depend on M.

    Args:
        within: what the rows of A in a tile must divide; None allows any.
    """
    sizes = replace(sizes, m=row_class(sizes.m))

    def cheapest(tiles: list[Tiles]) -> tuple[float, int, Tiles]:
        usable = [one for one in tiles if within is None or within % one.m == 0]
        return min((cost(form, sizes, one), one.m * one.n, one) for one in usable)

    usual = cheapest(_tiles(form, _SHAPES, (_USUAL_DEPTH, _USUAL_DEPTH // 2)))
    if usual[0] < _WORTH_SEARCHING:
        return usual[2]
    return min(usual, cheapest(candidates(form)))[2]
