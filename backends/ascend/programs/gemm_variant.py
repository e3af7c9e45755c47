"""What the dense GEMM program is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

Element = Literal["bf16", "fp8", "fp4", "fp32"]
#: store: the accumulator as it is; scale: alpha * acc; add: C + alpha * acc; accumulate: D + alpha * acc; quantise: FP8
#: with one scale per 32 columns; round: stochastically to bfloat16; heads: as it is, with gaps between columns.
Epilogue = Literal["store", "scale", "add", "accumulate", "quantise", "round", "heads"]

#: Elements that share a scale, along K of operands and along the columns of an FP8 D.
SCALE_BLOCK = 32
#: Elements of one int16 scale word.
PAIR = 2 * SCALE_BLOCK
#: Rows and columns of a fractal, the unit in which the cube works on a tile.
FRACTAL = 16
#: Buffer versions of everything that is streamed; the accumulator and what follows it have one.
STREAMED_VERSIONS = 2
ELEMENT_BITS: dict[Element, int] = {"bf16": 16, "fp8": 8, "fp4": 4, "fp32": 32}
#: Of the dtypes of D; uint16 holds bfloat16 bits, uint8 E4M3.
OUT_BYTES = {"bfloat16": 2, "float32": 4, "uint16": 2, "uint8": 1}
#: Bytes of a row of a fractal.
C0_BYTES = 32
#: FP4 elements that a vector core decodes at a time: one register of FP8.
FP4_REGISTER_ELEMENTS = 256


@dataclass(frozen=True, slots=True, order=True)
class Tiles:
    """Tile sizes of one cube core.

    Attributes:
        m, n: rows of A and B, hence the accumulator's size in L0C.
        k: K elements of one GM -> L1 step.
        k_step: K elements of one L1 -> L0 step; divides k.
    """

    m: int
    n: int
    k: int
    k_step: int


@dataclass(frozen=True, slots=True)
class Packed:
    """An operand of FP4 codes, two per byte, that vector cores turn into FP8 while the cube works.

    Attributes:
        operand: which one.
        is_k_major: stored [mn, k / 2], else [k, mn / 2].
    """

    operand: Literal["a", "b"]
    is_k_major: bool

    def stored_tile(self, tiles: Tiles) -> tuple[int, int]:
        """Return rows and columns (elements) of a tile as it is stored."""
        mn = tiles.m if self.operand == "a" else tiles.n
        return (mn, tiles.k) if self.is_k_major else (tiles.k, mn)

    def ub_shapes(self, tiles: Tiles) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Return the byte shapes of a vector core's half of a tile: codes, and FP8 in the order of L1.

        Rows of codes start where a register load may. Each group of 32 columns has an unused row behind it: a copy that
        TileLang shares with its own reordering expects that.
        """
        rows, columns = self.stored_tile(tiles)
        registers = -(-columns // FP4_REGISTER_ELEMENTS)
        codes = (rows // 2, registers * FP4_REGISTER_ELEMENTS // 2)
        return codes, (columns // C0_BYTES, rows // 2 + 1, C0_BYTES)


@dataclass(frozen=True, slots=True)
class GemmForm:
    """What a GEMM is specialised on, before its tiles are chosen.

    Attributes:
        element: format of both operands as the cube reads them.
        is_scaled: whether both have int16 block scales.
        a_is_k_major, b_is_k_major: stored [mn, k], else [k, mn].
        out: TileLang dtype of C and D.
        epilogue: what happens between the accumulator and D.
        num_cores: launched blocks.
        sfd: dtype of the scale words of an FP8 D (quantise).
        counts_clamped: whether clamped values are counted (quantise).
        run: columns that stay together (heads).
        packed: operands that arrive as FP4 and become FP8 on their way to the cube.
    """

    element: Element
    is_scaled: bool
    a_is_k_major: bool
    b_is_k_major: bool
    out: str
    epilogue: Epilogue
    num_cores: int
    sfd: str = "int16"
    counts_clamped: bool = False
    run: int = 0
    packed: tuple[Packed, ...] = ()

    def with_tiles(self, tiles: Tiles) -> GemmVariant:
        """Return the variant of these tile sizes."""
        return GemmVariant(**{one.name: getattr(self, one.name) for one in fields(self)}, tiles=tiles)

    def is_packed(self, operand: Literal["a", "b"]) -> bool:
        """Whether an operand arrives as FP4 and becomes FP8."""
        return any(one.operand == operand for one in self.packed)

    @property
    def word_columns(self) -> int:
        """Columns of D whose scales share a word."""
        return (4 if self.sfd == "int32" else 2) * SCALE_BLOCK

    @property
    def out_bytes(self) -> int:
        """Bytes of an element of D."""
        return OUT_BYTES[self.out]

    @property
    def row_multiple(self) -> int:
        """What the rows of tiles of A and of B must be multiples of.

        A transposing L1 -> L0 copy moves 32 bytes along the rows. Half the rows of a tile of int16 scale words of D fill 32
        bytes, the alignment of rows in UB.
        """
        is_transposed = not (self.a_is_k_major and self.b_is_k_major)
        transposed = 32 * 8 // ELEMENT_BITS[self.element] if is_transposed else 0
        return max(FRACTAL, transposed, 32 if self.epilogue == "quantise" else 0)

    @property
    def column_multiple(self) -> int:
        """What the columns of a tile of D must be a multiple of: whole scale words, or whole runs."""
        return max(FRACTAL, self.word_columns if self.epilogue == "quantise" else 0, self.run)

    @property
    def adds(self) -> bool:
        """Whether the epilogue reads an addend."""
        return self.epilogue in ("add", "accumulate")

    @property
    def trims_tiles(self) -> bool:
        """Whether the cube works on the rows that exist (in 16s) only, which lets the store follow it by unit flags.

        Unit flags stand per fractal, and a store clears those it copies: the cube must not set others. An 8-bit operand
        that is not K-major is transposed 32 rows at a time and cannot be trimmed to 16.
        """
        return self.epilogue == "store" and (self.element == "bf16" or (self.a_is_k_major and self.b_is_k_major))


@dataclass(frozen=True, slots=True)
class GemmVariant(GemmForm):
    """One compiled form of the GEMM.

    Attributes:
        tiles: tile sizes.
    """

    tiles: Tiles = field(kw_only=True)
