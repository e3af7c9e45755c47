"""The TileLang program of batches of GEMMs: one walk over the tiles of all entries.

Importing this module imports TileLang. The steps of a tile are in *_steps.py.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .epilogue_steps import Outputs, epilogue_tiles, store_tile
from .gemm_steps import Matrix, Place, Source, banded, elements, gm_types, multiply_tile, on_chip_tiles
from .variants import BatchedVariant


def build(variant: BatchedVariant) -> Any:
    """Return the prim_func of a variant: D[i] = epilogue(A[i] @ B[i].T), or one D for the sum of all products.

    Its arguments are those of the dense program without head splits, with the size of the batch in front (not of C, D and
    SFD for a sum); the strides between entries are free.
    """
    gemm = variant.gemm
    batch = T.dynamic("batch")
    entries = () if variant.sums_batch else (batch,)
    a_type, b_type, sa_type, sb_type, c_type, d_type, sfd_type, M, N, K = gm_types(gemm, (batch,), (batch,), entries)
    bm, bn, cores = gemm.tiles.m, gemm.tiles.n, gemm.num_cores

    @T.prim_func
    def batched_gemm(
        A: a_type,
        B: b_type,
        SA: sa_type,
        SB: sb_type,
        C: c_type,
        D: d_type,
        SFD: sfd_type,
        count: T.Tensor((1,), "int32"),
        factor: T.float32,
    ):
        with T.MixedKernel(cores) as (core, vector_core):
            a = elements(gemm, A, batch, M, K)
            b = elements(gemm, B, batch, N, K)
            tiles = on_chip_tiles(gemm, vector_core)
            c0 = T.alloc_l0c((bm, bn), "float32")
            halves = epilogue_tiles(gemm, vector_core)
            rows = T.ceildiv(M, bm)
            columns = T.ceildiv(N, bn)
            per_entry = rows * columns
            total = per_entry if variant.sums_batch else per_entry * batch
            for step in range(T.ceildiv(total - core, cores)):
                m, n = banded(gemm, (step * cores + core) % per_entry, rows, columns, 0)
                i = T.alloc_var("int32")
                i = (step * cores + core) // per_entry
                T.assume(i >= 0 and i < batch)
                T.assume(m >= 0 and m < M)
                T.assume(n >= 0 and n < N)
                at = Place(m, n, 0, K)
                if variant.sums_batch:
                    source = Source(Matrix(a), Matrix(b), Matrix(SA), Matrix(SB), entries=batch)
                    outputs = Outputs(Matrix(D), Matrix(C), Matrix(SFD), count, N, factor)
                else:
                    source = Source(Matrix(a, (i,)), Matrix(b, (i,)), Matrix(SA, (i,)), Matrix(SB, (i,)))
                    outputs = Outputs(Matrix(D, (i,)), Matrix(C, (i,)), Matrix(SFD, (i,)), count, N, factor)
                multiply_tile(gemm, tiles, c0, source, outputs.d, at)
                store_tile(gemm, c0, halves, outputs, at)

    return batched_gemm
