"""The steps by which vector cores turn a tile of FP4 codes into FP8 elements in L1, while the cube works on the tile before.

Codes go GM -> UB, are decoded there and go UB -> L1 in the cube's fractal order; no expanded operand ever lies in GM.
Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites macros from their source: assignments declare buffers and variables.

from dataclasses import dataclass
from typing import Any

import tilelang.ascend.language as T

from .gemm_variant import C0_BYTES, FP4_REGISTER_ELEMENTS, STREAMED_VERSIONS, Packed, Tiles


@dataclass(frozen=True, eq=False)
class Codes:
    """One vector core's half of the rows of a stored tile in UB, as codes and as values, and which half that is."""

    packed: Any
    values: Any
    half: Any


@T.macro
def code_tiles(operand: Packed, tiles: Tiles, vector_core: Any) -> Codes:
    """Allocate the tiles of a packed operand."""
    packed_shape, values_shape = operand.ub_shapes(tiles)
    packed = T.alloc_shared(packed_shape, "uint8")
    values = T.alloc_shared(values_shape, "uint8")
    T.annotate_buffer_versions({packed: STREAMED_VERSIONS, values: STREAMED_VERSIONS})
    return Codes(packed, values, vector_core)


@T.macro
def expand_tile(operand: Packed, tiles: Tiles, codes: Codes, source: Any, tile: Any, valid: tuple[Any, Any]) -> None:
    """tile = the FP8 elements of `source`, a region of bytes; zero behind its `valid` rows and columns."""
    rows, columns = operand.stored_tile(tiles)
    half = rows // 2
    T.dual_copy(source, codes.packed[:, : columns // 2])
    with T.SimdVF():
        table = _decoding_table()
        masks = _masks(columns, valid[1])
        present = T.max(0, T.min(half, valid[0] - codes.half * half))
        for row in T.serial(present):
            _decode_row(codes, row, columns, table, masks)
        for row in T.serial(half - present):
            _clear_row(codes, present + row, columns)
    # The copy that TileLang itself puts behind its 16-bit reordering; it moves blocks of 32 bytes, whatever they hold.
    T.ascend_nd2nz_post_copy(
        T.access_ptr(tile[codes.half * half, 0], "w", half, columns),
        T.access_ptr(codes.values, "r"),
        half,
        columns // 2,
        rows,
        "half",
    )


def _registers(columns: int) -> list[tuple[int, int]]:
    """Return first column and number of columns of every register of a row."""
    return [(at, min(columns - at, FP4_REGISTER_ELEMENTS)) for at in range(0, columns, FP4_REGISTER_ELEMENTS)]


def _masks(columns: int, valid: Any) -> list[Any]:
    """Return, per register, nibble masks for pairs of codes in 16-bit lanes that are zero behind the `valid` columns."""
    masks = []
    for first, _ in _registers(columns):
        present = T.simd.update_mask(T.cast(T.max(0, valid - first + 1) // 2, "uint32"), 16)
        masks.append(T.bind(T.simd.vdup(0x0F0F, "uint16", present)))
    return masks


def _decode_row(codes: Codes, row: Any, columns: int, table: Any, masks: list[Any]) -> None:
    for (first, width), mask in zip(_registers(columns), masks, strict=True):
        both = T.reinterpret(T.simd.vld(codes.packed[row, first // 2], "UNPK_B8"), "uint16x128")
        _store_register(codes, row, first, width, _decoded(both, table, mask))


def _clear_row(codes: Codes, row: Any, columns: int) -> None:
    for first, width in _registers(columns):
        _store_register(codes, row, first, width, T.simd.vdup(0, "uint8"))


def _store_register(codes: Codes, row: Any, first: int, width: int, register: Any) -> None:
    """Store elements of a row; blocks of 32 go to as many groups."""
    pitch = codes.values.shape[1]
    target = T.access_ptr(codes.values[first // C0_BYTES, row, 0], "w", width // C0_BYTES, pitch, C0_BYTES)
    T.evaluate(T.simd.vsstb(register, target, pitch << 16, T.simd.update_mask(width, 8)))


@T.macro
def _decoded(both: Any, table: Any, mask: Any) -> Any:
    """Return the values of pairs of codes that stand in the low bytes of 16-bit lanes."""
    apart = T.simd.vand(T.simd.vor(both, T.simd.vshls(both, 4)), mask)
    return T.simd.vselr(table, T.reinterpret(apart, "uint8x256"))


@T.macro
def _decoding_table() -> Any:
    """Return a register whose lane c, below 16, is the E4M3 byte of E2M1 code c.

    Magnitude 0 is 0x00, 1 (0.5) is 0x30, and any other m is 0x30 + 4m; the sign moves from bit 3 to bit 7. The code 0x8
    becomes +0.
    """
    lane = T.simd.vci(0, "int16")
    magnitude = T.simd.vand(lane, T.simd.vdup(7, "int16"))
    up_to_1 = T.simd.vmins(magnitude, 1)
    up_to_2 = T.simd.vmins(magnitude, 2)
    sign = T.simd.vmul(T.simd.vand(lane, T.simd.vdup(8, "int16")), up_to_1)
    sum_of_steps = T.simd.vadd(T.simd.vmuls(up_to_1, 40), T.simd.vmuls(T.simd.vadd(magnitude, up_to_2), 4))
    word = T.simd.vadd(sum_of_steps, T.simd.vmuls(sign, 16))
    return T.simd.vpack(T.reinterpret(word, "uint16x128"), 0)
