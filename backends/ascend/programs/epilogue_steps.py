"""What happens to a tile of the accumulator before it is stored: one macro per epilogue, on the vector cores.

Definition of the numbers: unikernels/operations/epilogues.py. Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites macros from their source: assignments declare buffers and variables.

from dataclasses import dataclass
from typing import Any

import tilelang.ascend.language as T

from .gemm_steps import Place, always_conflict, trimmed, unit_flag
from .gemm_variant import SCALE_BLOCK, GemmVariant
from .gm_steps import Matrix
from .vector_steps import THREADS

_MANTISSA, _INFINITY, _MAGNITUDE, _SIGN = 0x7FFFFF, 0x7F800000, 0x7FFFFFFF, -(1 << 31)
_E4M3_NAN = 0x7F
_AMAX_FLOOR = 0x38D1B717  # bits of 1e-4
_HALF_SUBNORMAL = 0x00400000  # bits of 2^-127


@dataclass(frozen=True, eq=False)
class Halves:
    """Halves of a tile in UB, one per vector core (None if the epilogue needs none), and which of the two this core is."""

    vector_core: Any
    product: Any = None
    result: Any = None
    addend: Any = None
    scales: Any = None  # [words, rows / 2]

    def in_ub(self) -> list[Any]:
        """Return the tiles."""
        return [tile for tile in (self.product, self.result, self.addend, self.scales) if tile is not None]


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a tile is stored to, and what the epilogue reads besides the accumulator.

    Attributes:
        d: D.
        c: C, if the epilogue adds it.
        sfd: scales of an FP8 D, [n / columns of a word, m].
        count: int32 [1] in GM, how many values were clamped.
        columns: N.
        factor: alpha, or the largest magnitude of an FP8 D.
        head: (left + right, middle, right) of head splits.
    """

    d: Matrix
    c: Matrix | None = None
    sfd: Matrix | None = None
    count: Any = None
    columns: Any = None
    factor: Any = None
    head: Any = None


@T.macro
def epilogue_tiles(variant: GemmVariant, vector_core: Any) -> Halves:
    """Allocate what the epilogue works on in UB."""
    shape = (variant.tiles.m // 2, variant.tiles.n)
    tiles = Halves(vector_core)
    if variant.epilogue != "store":
        product = T.alloc_shared(shape, "float32")
        result = T.alloc_shared(shape, variant.out)
        T.annotate_buffer_versions({product: 1, result: 1})
        tiles = Halves(vector_core, product, result)
        if variant.adds:
            addend = T.alloc_shared(shape, variant.out)
            T.annotate_buffer_versions({addend: 1})
            tiles = Halves(vector_core, product, result, addend)
        if variant.epilogue == "quantise":
            scales = T.alloc_shared((variant.tiles.n // variant.word_columns, variant.tiles.m // 2), variant.sfd)
            T.annotate_buffer_versions({scales: 1})
            tiles = Halves(vector_core, product, result, None, scales)
    return tiles


@T.macro
def store_tile(variant: GemmVariant, c0: Any, tiles: Halves, outputs: Outputs, at: Place) -> None:
    """Store the accumulator of the tile at `at` as the variant's epilogue says."""
    bm, bn, epilogue = variant.tiles.m, variant.tiles.n, variant.epilogue
    if epilogue == "store":
        rows, columns = bm, bn
        if variant.trims_tiles:
            rows, columns = T.min(trimmed(outputs.d, -2, at.m), bm), T.min(trimmed(outputs.d, -1, at.n), bn)
        T.copy(c0[:rows, :columns], outputs.d.block(at.m, rows, at.n, columns), **unit_flag(variant, True))
    else:
        always_conflict(*tiles.in_ub())
        T.dual_copy(c0, tiles.product)
        if epilogue == "add":
            T.dual_copy(outputs.c.block(at.m, bm, at.n, bn), tiles.addend)
        if epilogue == "accumulate":
            T.dual_copy(outputs.d.block(at.m, bm, at.n, bn), tiles.addend)
        if epilogue == "quantise":
            _quantise(variant, tiles, outputs, at)
            first_word, words = at.n // variant.word_columns, bn // variant.word_columns
            T.dual_copy(tiles.scales, outputs.sfd.block(first_word, words, at.m, bm))
        elif epilogue == "round":
            _round_stochastically(variant, tiles, outputs.columns, at.n)
        else:
            _scale_and_add(variant, tiles, outputs.factor)
        if epilogue == "heads":
            _store_runs(variant, tiles, outputs, at)
        else:
            T.dual_copy(tiles.result, outputs.d.block(at.m, bm, at.n, bn))


@T.macro
def _store_runs(variant: GemmVariant, tiles: Halves, outputs: Outputs, at: Place) -> None:
    """Store runs of columns, none of which crosses the middle of a head: column n goes to n + (n + right) // head * middle."""
    run = variant.run
    head, middle, right = outputs.head
    for part in T.serial(variant.tiles.n // run):
        column = T.alloc_var("int32")
        column = at.n + part * run
        if column < outputs.columns:
            target = T.alloc_var("int32")
            target = column + (column + right) // head * middle
            T.assume(target >= 0)
            T.dual_copy(
                tiles.result[:, part * run : (part + 1) * run],
                outputs.d.block(at.m, variant.tiles.m, target, run),
            )


@T.macro
def _scale_and_add(variant: GemmVariant, tiles: Halves, alpha: Any) -> None:
    """result = [addend +] alpha * product, rounded once."""
    with T.SimtVF(threads=THREADS):
        for i, j in T.Parallel(variant.tiles.m // 2, variant.tiles.n):
            if variant.adds:
                tiles.result[i, j] = T.cast(
                    T.cast(tiles.addend[i, j], "float32") + alpha * tiles.product[i, j], variant.out
                )
            else:
                tiles.result[i, j] = T.cast(alpha * tiles.product[i, j], variant.out)


@T.macro
def _quantise(variant: GemmVariant, tiles: Halves, outputs: Outputs, at: Place) -> None:
    """result = codes of E4M3 of the product rounded to bfloat16 and clamped, with one exponent per 32 columns; counts the clamped.

    A thread owns the columns of one scale word of a row. Magnitudes are compared as integers, which orders NaN last. Indices
    are not kept in variables: the compiler would no longer see that threads do not meet and insert barriers.
    """
    word_columns, half = variant.word_columns, variant.tiles.m // 2
    # Rows and words of D in this core's half. What is behind them are products of scales that nobody wrote: not to be counted.
    rows = T.alloc_var("int32")
    words = T.alloc_var("int32")
    rows = half
    words = variant.tiles.n // word_columns
    if variant.counts_clamped:
        rows = outputs.d.buffer.shape[-2] - at.m - tiles.vector_core * half
        words = (outputs.columns - at.n) // word_columns
    with T.SimtVF(threads=THREADS):
        for word, i in T.Parallel(variant.tiles.n // word_columns, half):
            limit = T.alloc_var("int32")
            packed = T.alloc_var("int32")
            clamped = T.alloc_var("int32")
            limit = T.reinterpret(outputs.factor, "int32")
            packed = 0
            clamped = 0
            for block in T.serial(word_columns // SCALE_BLOCK):
                amax = T.alloc_var("int32")
                exponent = T.alloc_var("int32")
                amax = 0
                for j in T.serial(SCALE_BLOCK):
                    magnitude = T.alloc_var("int32")
                    magnitude = (
                        _bfloat16_bits(tiles.product[i, word * word_columns + block * SCALE_BLOCK + j]) & _MAGNITUDE
                    )
                    if magnitude > limit and magnitude <= _INFINITY:
                        clamped += 1
                        magnitude = limit
                    amax = T.max(amax, magnitude)
                amax = T.max(amax, _AMAX_FLOOR)
                # The exponent of amax / 448, rounded up: 448 is 1.75 * 2^8.
                exponent = (amax >> 23) - 8 + T.if_then_else((amax & _MANTISSA) > 0x600000, 1, 0)
                if amax >= _INFINITY:
                    exponent = 255 + T.if_then_else(amax > _INFINITY, 1, 0)
                packed = packed | ((exponent & 255) << (8 * block))
                inverse = T.alloc_var("int32")
                inverse = T.if_then_else(
                    exponent < 254, (254 - exponent) << 23, _HALF_SUBNORMAL >> T.max(exponent - 254, 0)
                )
                for j in T.serial(SCALE_BLOCK):
                    value = T.alloc_var("int32")
                    value = _bfloat16_bits(tiles.product[i, word * word_columns + block * SCALE_BLOCK + j])
                    if (value & _MAGNITUDE) > limit and (value & _MAGNITUDE) <= _INFINITY:
                        value = (value & _SIGN) | limit
                    code = T.alloc_var("uint8")
                    code = T.reinterpret(
                        T.cast(T.reinterpret(value, "float32") * T.reinterpret(inverse, "float32"), "float8_e4m3fn"),
                        "uint8",
                    )
                    if (value & _MAGNITUDE) > _INFINITY:  # the cast would make it 0
                        code = T.cast(_E4M3_NAN | ((value >> 24) & 128), "uint8")
                    tiles.result[i, word * word_columns + block * SCALE_BLOCK + j] = code
            tiles.scales[word, i] = T.cast(packed, variant.sfd)
            if variant.counts_clamped and i < rows and word < words and clamped > 0:
                T.atomic_add(outputs.count[0], clamped)


def _bfloat16_bits(value: Any) -> Any:
    """Return the bits, as int32, of a float32 rounded to bfloat16."""
    return T.reinterpret(T.cast(T.cast(value, "bfloat16"), "float32"), "int32")


@T.macro
def _round_stochastically(variant: GemmVariant, tiles: Halves, num_columns: Any, first_column: Any) -> None:
    """result = bits of bfloat16, rounded by 16-bit draws from a hash of four neighbouring columns."""
    with T.SimtVF(threads=THREADS):
        for i, quad in T.Parallel(variant.tiles.m // 2, variant.tiles.n // 4):
            column = T.alloc_var("int32")
            h = T.alloc_var("uint32")
            x = T.alloc_var("uint32")
            y = T.alloc_var("uint32")
            column = first_column + quad * 4
            h = T.cast(column // 4, "uint32")
            for k, factor in enumerate((0x5671D42B, 0x9995E499, 0xACE1B8A5, 0xE153538D)):
                if column + k < num_columns:
                    h += T.reinterpret(tiles.product[i, quad * 4 + k], "uint32") * T.uint32(factor)
            h = (h ^ (h >> T.uint32(23))) * T.uint32(0x7FEB352D)
            h = h ^ (h >> T.uint32(16))
            x = h * T.uint32(0x846CA68B)
            x = x ^ (x >> T.uint32(11))
            y = h * T.uint32(0xD35A2D97)
            y = y ^ (y >> T.uint32(11))
            for k in range(4):
                bits = T.alloc_var("uint32")
                draw = T.alloc_var("uint32")
                bits = T.reinterpret(tiles.product[i, quad * 4 + k], "uint32")
                draw = (x if k < 2 else y) >> T.uint32(16 * (k % 2))
                draw = draw & T.uint32(0xFFFF)
                bits = (bits >> T.uint32(16)) + (((bits & T.uint32(0xFFFF)) + draw) >> T.uint32(16))
                tiles.result[i, quad * 4 + k] = T.cast(bits, variant.out)
