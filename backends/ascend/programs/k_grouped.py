"""The TileLang program of the GEMM grouped along K: a walk over the tiles of every group, each with its own range of K.

Importing this module imports TileLang. The steps of a tile are in *_steps.py.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .epilogue_steps import Outputs
from .gemm_steps import Place, Source
from .gemm_variant import PAIR
from .gm_steps import Matrix, elements, gm_types
from .tile_steps import buffers_of, compute_tile
from .variants import KGroupedVariant
from .walk_steps import Turns, banded


def build(variant: KGroupedVariant) -> Any:
    """Return the prim_func of a variant: D[g] = [C[g] +] [alpha *] A_g @ B_g.T, dynamic in all sizes.

    Its arguments are always (A, B, SA, SB, C, D, layout, alpha): operands and scales as in the dense program, C and D
    [G, M, N], layout int32 [G]. What a group's last 64 elements of K have behind its end must be zero in A or B.

    The product of an empty group is one step of zeros, read from behind the end of the operands.
    """
    gemm = variant.gemm
    G = T.dynamic("G")
    types = gm_types(gemm, d_groups=(G,))
    M, N, K = types.sizes
    bm, bn, cores, alignment = gemm.tiles.m, gemm.tiles.n, gemm.num_cores, variant.alignment

    @T.prim_func
    def k_grouped_gemm(
        A: types.a,
        B: types.b,
        SA: types.sa,
        SB: types.sb,
        C: types.c,
        D: types.d,
        layout: T.Tensor((G,), "int32"),
        alpha: T.float32,
    ):
        with T.MixedKernel(cores) as (core, vector_core):
            a = elements(gemm, A, M, K)
            b = elements(gemm, B, N, K)
            source = Source(Matrix(a), Matrix(b), Matrix(SA), Matrix(SB))
            buffers = buffers_of(gemm, vector_core)
            rows = T.ceildiv(M, bm)
            columns = T.ceildiv(N, bn)
            turns = Turns(core, cores)
            stop = T.alloc_var("int32")
            stop = 0
            for g in range(G):
                start = T.alloc_var("int32")
                k = T.alloc_var("int32")
                depth = T.alloc_var("int32")
                first = T.alloc_var("int32")
                with T.Task():  # one for the scheduler to place
                    if variant.layout == "psum":
                        start = T.ceildiv(stop, alignment) * alignment
                        stop = T.max(start, T.min(layout[g], K))
                    else:
                        start = stop
                        stop = T.min(start + T.max(layout[g], 0), K)
                    k = T.if_then_else(stop > start, start, T.ceildiv(K, PAIR) * PAIR)
                    depth = T.if_then_else(stop > start, stop - start, PAIR)
                    start = T.if_then_else(stop > start, start, 0)
                    first = turns.first()
                for step in range(T.ceildiv(rows * columns - first, cores)):
                    m, n = banded(gemm, step * cores + first, rows, columns, 0)
                    at = Place(m, n, k, depth, scales_start=start)
                    outputs = Outputs(Matrix(D, (g,)), Matrix(C, (g,)), columns=N, factor=alpha)
                    compute_tile(gemm, buffers, source, outputs, at)
                turns.pass_on(rows * columns)

    return k_grouped_gemm
