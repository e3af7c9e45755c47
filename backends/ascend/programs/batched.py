"""The TileLang program of batches of GEMMs: one walk over the tiles of all entries.

Importing this module imports TileLang. The steps of a tile are in *_steps.py.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .epilogue_steps import Outputs
from .gemm_steps import Place, Source
from .gm_steps import Matrix, elements, gm_types
from .tile_steps import buffers_of, compute_tile
from .variants import BatchedVariant
from .walk_steps import banded


def build(variant: BatchedVariant) -> Any:
    """Return the prim_func of a variant: D[i] = epilogue(A[i] @ B[i].T), or one D for the sum of all products.

    Its arguments are those of the dense program without head splits, with the size of the batch in front (not of C, D and
    SFD for a sum); the strides between entries are free.
    """
    gemm = variant.gemm
    batch = T.dynamic("batch")
    entries = () if variant.sums_batch else (batch,)
    types = gm_types(gemm, (batch,), (batch,), entries)
    M, N, K = types.sizes
    bm, bn, cores = gemm.tiles.m, gemm.tiles.n, gemm.num_cores

    @T.prim_func
    def batched_gemm(
        A: types.a,
        B: types.b,
        SA: types.sa,
        SB: types.sb,
        C: types.c,
        D: types.d,
        SFD: types.sfd,
        count: T.Tensor((1,), "int32"),
        factor: T.float32,
    ):
        with T.MixedKernel(cores) as (core, vector_core):
            a = elements(gemm, A, batch, M, K)
            b = elements(gemm, B, batch, N, K)
            buffers = buffers_of(gemm, vector_core)
            rows = T.ceildiv(M, bm)
            columns = T.ceildiv(N, bn)
            per_entry = rows * columns
            total = per_entry if variant.sums_batch else per_entry * batch
            for step in range(T.ceildiv(total - core, cores)):
                m, n = banded(gemm, (step * cores + core) % per_entry, rows, columns, 0)
                i = T.alloc_var("int32")
                i = (step * cores + core) // per_entry
                T.assume(i >= 0 and i < batch)
                at = Place(m, n, 0, K)
                if variant.sums_batch:
                    source = Source(Matrix(a), Matrix(b), Matrix(SA), Matrix(SB), entries=batch)
                    outputs = Outputs(Matrix(D), Matrix(C), Matrix(SFD), count, N, factor)
                else:
                    source = Source(Matrix(a, (i,)), Matrix(b, (i,)), Matrix(SA, (i,)), Matrix(SB, (i,)))
                    outputs = Outputs(Matrix(D, (i,)), Matrix(C, (i,)), Matrix(SFD, (i,)), count, N, factor)
                compute_tile(gemm, buffers, source, outputs, at)

    return batched_gemm
