"""The TileLang program of the dense GEMM: one persistent kernel for every element format, operand major and epilogue.

Importing this module imports TileLang. Which variant a problem needs is decided in gemm.py, the tile sizes in gemm_tiles.py.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any, NamedTuple

import tilelang.ascend.language as T

from .gemm_variant import PAIR, STREAMED_VERSIONS, GemmVariant

THREADS = 256
_DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "fp4": "float4_e2m1fn"}


def build(variant: GemmVariant) -> Any:
    """Return the prim_func of a variant: D = [C +] [alpha *] A @ B.T, dynamic in M, N and K.

    Its arguments are always (A, B, SA, SB, C, D, alpha). Scales are int16 [ceil(K / 64), mn], or one unused word; FP4
    operands are bytes [mn, K / 2] without pitch; C is unused unless the epilogue adds, alpha if it only stores.

    Operands keep their stored shape in L1; the copy to L0 transposes where K is not contiguous, so that the
    multiplication is always NT. Copies from GM clamp to the tensor and fill the tile with zeros, which is what makes
    tails of M, N and K safe. Scale tiles have no such filling: there the multiplication runs over valid pairs only.
    """
    a_type, b_type, sa_type, sb_type, c_type, d_type, M, N, K = _types(variant)
    tiles, cores, epilogue, out = variant.tiles, variant.num_cores, variant.epilogue, variant.out
    bm, bn, bk = tiles.m, tiles.n, tiles.k
    step_k, step_pairs = tiles.k_step, tiles.k_step // PAIR
    element = _DTYPES[variant.element]
    adds = epilogue in ("add", "accumulate")

    @T.prim_func
    def gemm(A: a_type, B: b_type, SA: sa_type, SB: sb_type, C: c_type, D: d_type, alpha: T.float32):
        with T.Kernel(cores) as core:
            a = _elements(variant, A, M, K)
            b = _elements(variant, B, N, K)
            a1 = T.alloc_l1((bm, bk) if variant.a_is_k_major else (bk, bm), element)
            b1 = T.alloc_l1((bn, bk) if variant.b_is_k_major else (bk, bn), element)
            a0 = T.alloc_l0a((bm, step_k), element)
            b0 = T.alloc_l0b((bn, step_k), element)
            c0 = T.alloc_l0c((bm, bn), "float32")
            on_chip = _Tiles(a1, b1, a0, b0)
            if variant.is_scaled:
                sa1 = T.alloc_l1((bm, bk // PAIR), "int16")
                sb1 = T.alloc_l1((bn, bk // PAIR), "int16")
                sa0 = T.alloc_l0a_sf(a0, sf_dtype="int16")
                sb0 = T.alloc_l0b_sf(b0, sf_dtype="int16")
                on_chip = _Tiles(a1, b1, a0, b0, sa1, sb1, sa0, sb0)
            T.annotate_buffer_versions({tile: STREAMED_VERSIONS for tile in on_chip if tile is not None})
            if epilogue != "store":
                product = T.alloc_shared((bm // 2, bn), "float32")
                result = T.alloc_shared((bm // 2, bn), out)
                T.annotate_buffer_versions({product: 1, result: 1})
            if adds:
                addend = T.alloc_shared((bm // 2, bn), out)
                T.annotate_buffer_versions({addend: 1})
            columns = T.ceildiv(N, bn)
            for step in range(T.ceildiv(T.ceildiv(M, bm) * columns - core, cores)):
                m = T.alloc_var("int32")
                n = T.alloc_var("int32")
                m = (step * cores + core) // columns * bm
                n = (step * cores + core) % columns * bn
                T.assume(m >= 0 and m < M)
                T.assume(n >= 0 and n < N)
                for outer in T.Pipelined(T.ceildiv(K, bk), num_stages=2):
                    with T.Task():
                        _load(variant, on_chip, a, b, SA, SB, m, n, outer * bk)
                    pairs = T.min(T.ceildiv(K - outer * bk, PAIR), bk // PAIR)
                    for inner in T.Pipelined(T.ceildiv(pairs, step_pairs), num_stages=2):
                        valid = T.min(T.ceildiv(K - outer * bk, PAIR) - inner * step_pairs, step_pairs)
                        _multiply(variant, on_chip, c0, inner, valid, outer == 0 and inner == 0)
                if epilogue == "store":
                    T.copy(c0, D[m : m + bm, n : n + bn])
                else:
                    T.dual_copy(c0, product)
                    if epilogue == "add":
                        T.dual_copy(C[m : m + bm, n : n + bn], addend)
                    if epilogue == "accumulate":
                        T.dual_copy(D[m : m + bm, n : n + bn], addend)
                    with T.SimtVF(threads=THREADS):
                        for i, j in T.Parallel(bm // 2, bn):
                            if adds:
                                result[i, j] = T.cast(T.cast(addend[i, j], "float32") + alpha * product[i, j], out)
                            else:
                                result[i, j] = T.cast(alpha * product[i, j], out)
                    T.dual_copy(result, D[m : m + bm, n : n + bn])

    return gemm


class _Tiles(NamedTuple):
    """Tiles of A and B in L1 (stored shape) and L0 (rows, k), and of their scales (None if there are none)."""

    a1: Any
    b1: Any
    a0: Any
    b0: Any
    sa1: Any = None
    sb1: Any = None
    sa0: Any = None
    sb0: Any = None


def _types(variant: GemmVariant) -> tuple[Any, ...]:
    """Return the types of A, B, SA, SB, C, D and the symbols M, N, K."""
    M, N, K, KP, KB = (T.dynamic(name) for name in ("M", "N", "K", "KP", "KB"))
    lda, ldb, ldc, ldd = (T.dynamic(name) for name in ("lda", "ldb", "ldc", "ldd"))
    element, out = _DTYPES[variant.element], variant.out
    if variant.element == "fp4":
        K = KB * 2
        a, b = T.Tensor((M, KB), "uint8"), T.Tensor((N, KB), "uint8")
    else:
        a = T.StridedTensor((M, K) if variant.a_is_k_major else (K, M), (lda, 1), element)
        b = T.StridedTensor((N, K) if variant.b_is_k_major else (K, N), (ldb, 1), element)
    sa = T.Tensor((KP, M) if variant.is_scaled else (1,), "int16")
    sb = T.Tensor((KP, N) if variant.is_scaled else (1,), "int16")
    c, d = T.StridedTensor((M, N), (ldc, 1), out), T.StridedTensor((M, N), (ldd, 1), out)
    return a, b, sa, sb, c, d, M, N, K


def _elements(variant: GemmVariant, operand: Any, rows: Any, k: Any) -> Any:
    """Return an operand in GM as elements: FP4 arrives as bytes, because torch tensors count those."""
    return T.view(operand, (rows, k), dtype=_DTYPES["fp4"]) if variant.element == "fp4" else operand


@T.macro
def _load(variant: GemmVariant, on_chip: _Tiles, A: Any, B: Any, SA: Any, SB: Any, m: Any, n: Any, k: Any) -> None:
    """GM -> L1: whole tiles of both operands and their scales."""
    bm, bn, bk = variant.tiles.m, variant.tiles.n, variant.tiles.k
    T.copy(A[m : m + bm, k : k + bk] if variant.a_is_k_major else A[k : k + bk, m : m + bm], on_chip.a1)
    T.copy(B[n : n + bn, k : k + bk] if variant.b_is_k_major else B[k : k + bk, n : n + bn], on_chip.b1)
    if variant.is_scaled:
        pair = k // PAIR
        T.copy(SA[pair : pair + bk // PAIR, m : m + bm], on_chip.sa1, transpose=True)
        T.copy(SB[pair : pair + bk // PAIR, n : n + bn], on_chip.sb1, transpose=True)


@T.macro
def _stage(tile: Any, staged: Any, is_k_major: bool, k: Any, width: Any) -> None:
    """L1 -> L0: `width` columns of K from `k` on."""
    if is_k_major:
        T.copy(tile[:, k : k + width], staged[:, :width])
    else:
        T.copy(tile[k : k + width, :], staged[:, :width], transpose=True)


@T.macro
def _multiply(variant: GemmVariant, tiles: _Tiles, c0: Any, inner: Any, valid_pairs: Any, is_first: Any) -> None:
    """L1 -> L0 and c0 (+)= a0 @ b0.T for one step along K."""
    step = variant.tiles.k_step
    pairs = step // PAIR
    width = valid_pairs * PAIR if variant.is_scaled else step
    _stage(tiles.a1, tiles.a0, variant.a_is_k_major, inner * step, width)
    _stage(tiles.b1, tiles.b0, variant.b_is_k_major, inner * step, width)
    if variant.is_scaled:
        T.copy(tiles.sa1[:, inner * pairs : inner * pairs + valid_pairs], tiles.sa0[:, :valid_pairs])
        T.copy(tiles.sb1[:, inner * pairs : inner * pairs + valid_pairs], tiles.sb0[:, :valid_pairs])
        T.gemm_blockscaled(
            tiles.a0[:, :width],
            tiles.b0[:, :width],
            c0,
            tiles.sa0[:, :valid_pairs],
            tiles.sb0[:, :valid_pairs],
            transpose_B=True,
            clear_accum=is_first,
        )
    else:
        T.gemm(tiles.a0, tiles.b0, c0, transpose_B=True, clear_accum=is_first)
