"""The TileLang program of the GEMM whose groups are any ranges of K: starts and ends are free, ranges may overlap.

Importing this module imports TileLang. The steps of a tile are in *_steps.py; rows have been gathered before.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .epilogue_steps import Outputs, epilogue_tiles, store_tile
from .gemm_steps import Matrix, Place, Source, banded, ending_at, gm_types, multiply_tile, on_chip_tiles
from .gemm_variant import PAIR, GemmVariant


def build(variant: GemmVariant) -> Any:
    """Return the prim_func of a variant: D[g] = [D[g] +] A_g @ B_g.T, dynamic in all sizes.

    Its arguments are always (A [K, M], B [K, N], D [G, M, N], starts [G], stops [G]); A and B are bfloat16 and have no pitch.

    Each group sees operands that end where it does, so that copies fill tiles with zeros behind it.
    """
    G = T.dynamic("G")
    *_, d_type, _, M, N, K = gm_types(variant, d_groups=(G,))
    bm, bn, cores = variant.tiles.m, variant.tiles.n, variant.num_cores

    @T.prim_func
    def gathered_k_gemm(
        A: T.Tensor((K, M), "bfloat16"),
        B: T.Tensor((K, N), "bfloat16"),
        D: d_type,
        starts: T.Tensor((G,), "int32"),
        stops: T.Tensor((G,), "int32"),
    ):
        with T.MixedKernel(cores) as (core, vector_core):
            tiles = on_chip_tiles(variant, vector_core)
            c0 = T.alloc_l0c((bm, bn), "float32")
            halves = epilogue_tiles(variant, vector_core)
            rows = T.ceildiv(M, bm)
            columns = T.ceildiv(N, bn)
            turn = T.alloc_var("int32")  # core that takes the next tile
            turn = 0
            for g in range(G):
                k = T.alloc_var("int32")
                depth = T.alloc_var("int32")
                first = T.alloc_var("int32")
                stop = T.min(T.max(stops[g], 0), K)
                with T.Task():  # one for the scheduler to place
                    k = T.max(T.min(starts[g], stop), 0)
                    depth = T.max(stop - k, PAIR)  # an empty group multiplies zeros
                    first = (core + cores - turn) % cores
                source = Source(Matrix(ending_at(A, stop)), Matrix(ending_at(B, stop)), None, None)
                for step in range(T.ceildiv(rows * columns - first, cores)):
                    m, n = banded(variant, step * cores + first, rows, columns, 0)
                    T.assume(m >= 0 and m < M)
                    T.assume(n >= 0 and n < N)
                    at = Place(m, n, k, depth)
                    outputs = Outputs(Matrix(D, (g,)), columns=N, factor=T.float32(1))
                    multiply_tile(variant, tiles, c0, source, outputs.d, at)
                    store_tile(variant, c0, halves, outputs, at)
                turn = (turn + rows * columns) % cores

    return gathered_k_gemm
