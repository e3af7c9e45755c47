"""Plain dense GEMMs in TileLang: persistent, tiled, with buffers in any number of versions; nothing clever.

They exist to compare the timing model with published figures and to show it well and badly made kernels. The kernels
of the Ascend backend are elsewhere. Importing this file imports TileLang.
"""


# mypy: disable-error-code="valid-type, untyped-decorator, no-untyped-def"
# Annotations stay objects here: TileLang evaluates them, and as text they would not see this file's local names.

from dataclasses import dataclass
from typing import Any

import tilelang.ascend.language as T

GROUP = 8  # tiles of M that the cores work on side by side, so that they share tiles of B in L2


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of a tile in elements, and how many copies of each buffer take turns.

    `bm` x `bn` of the result per block and step, `bk` along K per copy to L1, `ks` along K per multiply.
    """

    bm: int = 128
    bn: int = 256
    bk: int = 256
    ks: int = 64
    versions: int = 2  # of the L1 and L0 buffers; 1 = nothing overlaps
    cores: int = 32
    unit_flag: bool = False  # a tile's store starts during its last multiply; only for tiles that divide M and N


def store_flag(t: Tiling, kk: Any, s: Any, k: Any) -> dict[str, Any]:
    """Unit flag of a multiply: 3 on the last one of a tile, 2 before; nothing if the tiling does without."""
    if not t.unit_flag:
        return {}
    last = (kk == T.ceildiv(k, t.bk) - 1) & (s == t.bk // t.ks - 1)
    return {"unit_flag_ctrl": T.if_then_else(last, 3, 2)}


def bf16_gemm(t: Tiling) -> Any:
    """D[M, N] bf16 = A[M, K] @ B[N, K].T, both bf16; K a multiple of `bk`."""
    bm, bn, bk, ks, cores = t.bm, t.bn, t.bk, t.ks, t.cores
    M, N, K = T.dynamic("M"), T.dynamic("N"), T.dynamic("K")

    @T.prim_func
    def gemm(A: T.Tensor((M, K), "bfloat16"), B: T.Tensor((N, K), "bfloat16"), D: T.Tensor((M, N), "bfloat16")):
        with T.Kernel(cores) as bx:
            a1, b1 = T.alloc_l1((bm, bk), "bfloat16"), T.alloc_l1((bn, bk), "bfloat16")
            a0, b0 = T.alloc_l0a((bm, ks), "bfloat16"), T.alloc_l0b((bn, ks), "bfloat16")
            c0 = T.alloc_l0c((bm, bn), "float32")
            v = t.versions
            T.annotate_buffer_versions({a1: v, b1: v, a0: v, b0: v, c0: 1})
            mt = T.ceildiv(M, bm)
            nt = T.ceildiv(N, bn)
            for w in range(T.ceildiv(mt * nt - bx, cores)):
                m = T.alloc_var("int32")
                n = T.alloc_var("int32")
                g = T.alloc_var("int32")
                h = T.alloc_var("int32")
                g = (w * cores + bx) // (GROUP * nt) * GROUP
                h = T.min(mt - g, GROUP)
                m = (g + (w * cores + bx) % (GROUP * nt) % h) * bm
                n = (w * cores + bx) % (GROUP * nt) // h * bn
                T.assume(m >= 0 and m < M)
                T.assume(n >= 0 and n < N)
                for kk in T.Pipelined(T.ceildiv(K, bk), num_stages=v):
                    with T.Task():
                        T.copy(A[m : m + bm, kk * bk : kk * bk + bk], a1)
                        T.copy(B[n : n + bn, kk * bk : kk * bk + bk], b1)
                    for s in T.Pipelined(bk // ks, num_stages=v):
                        T.copy(a1[:, s * ks : (s + 1) * ks], a0)
                        T.copy(b1[:, s * ks : (s + 1) * ks], b0)
                        T.gemm(
                            a0, b0, c0, transpose_B=True, clear_accum=(kk == 0 and s == 0), **store_flag(t, kk, s, K)
                        )
                T.copy(c0, D[m : m + bm, n : n + bn], **({"unit_flag_ctrl": 3} if t.unit_flag else {}))

    return gemm


def mx_gemm(t: Tiling, dtype: str, k: int | None = None) -> Any:
    """D[M, N] bf16 = (A * SA) @ (B * SB).T with `dtype` "fp8" or "fp4" and UE8M0 scales packed as int16 [K / 64, M or N].

    `k` fixes K: fp4 tensors hold two values per byte, so that their shape does not tell K.
    """
    bm, bn, bk, ks, cores, pk, ps = t.bm, t.bn, t.bk, t.ks, t.cores, t.bk // 64, t.ks // 64
    element = {"fp8": "float8_e4m3fn", "fp4": "float4_e2m1fn"}[dtype]
    M, N, K, P = T.dynamic("M"), T.dynamic("N"), k or T.dynamic("K"), T.dynamic("P")

    @T.prim_func
    def gemm(
        A: T.Tensor((M, K), element),
        B: T.Tensor((N, K), element),
        SA: T.Tensor((P, M), "int16"),
        SB: T.Tensor((P, N), "int16"),
        D: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(cores) as bx:
            a1, b1 = T.alloc_l1((bm, bk), element), T.alloc_l1((bn, bk), element)
            sa1, sb1 = T.alloc_l1((bm, pk), "int16"), T.alloc_l1((bn, pk), "int16")
            a0, b0 = T.alloc_l0a((bm, ks), element), T.alloc_l0b((bn, ks), element)
            sa0, sb0 = T.alloc_l0a_sf(a0, sf_dtype="int16"), T.alloc_l0b_sf(b0, sf_dtype="int16")
            c0 = T.alloc_l0c((bm, bn), "float32")
            v = t.versions
            T.annotate_buffer_versions({a1: v, b1: v, sa1: v, sb1: v, a0: v, b0: v, c0: 1})
            mt = T.ceildiv(M, bm)
            nt = T.ceildiv(N, bn)
            for w in range(T.ceildiv(mt * nt - bx, cores)):
                m = T.alloc_var("int32")
                n = T.alloc_var("int32")
                g = T.alloc_var("int32")
                h = T.alloc_var("int32")
                g = (w * cores + bx) // (GROUP * nt) * GROUP
                h = T.min(mt - g, GROUP)
                m = (g + (w * cores + bx) % (GROUP * nt) % h) * bm
                n = (w * cores + bx) % (GROUP * nt) // h * bn
                T.assume(m >= 0 and m < M)
                T.assume(n >= 0 and n < N)
                for kk in T.Pipelined(T.ceildiv(K, bk), num_stages=v):
                    with T.Task():
                        T.copy(A[m : m + bm, kk * bk : kk * bk + bk], a1)
                        T.copy(B[n : n + bn, kk * bk : kk * bk + bk], b1)
                        T.copy(SA[kk * pk : (kk + 1) * pk, m : m + bm], sa1, transpose=True)
                        T.copy(SB[kk * pk : (kk + 1) * pk, n : n + bn], sb1, transpose=True)
                    for s in T.Pipelined(bk // ks, num_stages=v):
                        T.copy(a1[:, s * ks : (s + 1) * ks], a0)
                        T.copy(b1[:, s * ks : (s + 1) * ks], b0)
                        T.copy(sa1[:, s * ps : (s + 1) * ps], sa0)
                        T.copy(sb1[:, s * ps : (s + 1) * ps], sb0)
                        T.gemm_blockscaled(
                            a0,
                            b0,
                            c0,
                            sa0,
                            sb0,
                            transpose_B=True,
                            clear_accum=(kk == 0 and s == 0),
                            **store_flag(t, kk, s, K),
                        )
                T.copy(c0, D[m : m + bm, n : n + bn], **({"unit_flag_ctrl": 3} if t.unit_flag else {}))

    return gemm
