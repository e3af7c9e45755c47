"""The TileLang program of the GEMM whose groups are any ranges of K: starts and ends are free, ranges may overlap.

Importing this module imports TileLang. The steps of a tile are in *_steps.py; rows have been gathered before.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .epilogue_steps import Outputs
from .gemm_steps import Place, Source
from .gemm_variant import PAIR, GemmVariant
from .gm_steps import Matrix, ending_at, gm_types
from .tile_steps import buffers_of, compute_tile
from .walk_steps import Turns, banded


def build(variant: GemmVariant) -> Any:
    """Return the prim_func of a variant: D[g] = [D[g] +] A_g @ B_g.T, dynamic in all sizes.

    Its arguments are always (A [K, M], B [K, N], D [G, M, N], starts [G], stops [G]); A and B are bfloat16 and have no pitch.

    Each group sees operands that end where it does, so that copies fill tiles with zeros behind it.
    """
    G = T.dynamic("G")
    types = gm_types(variant, d_groups=(G,))
    M, N, K = types.sizes
    bm, bn, cores = variant.tiles.m, variant.tiles.n, variant.num_cores

    @T.prim_func
    def gathered_k_gemm(
        A: T.Tensor((K, M), "bfloat16"),
        B: T.Tensor((K, N), "bfloat16"),
        D: types.d,
        starts: T.Tensor((G,), "int32"),
        stops: T.Tensor((G,), "int32"),
    ):
        with T.MixedKernel(cores) as (core, vector_core):
            buffers = buffers_of(variant, vector_core)
            rows = T.ceildiv(M, bm)
            columns = T.ceildiv(N, bn)
            turns = Turns(core, cores)
            for g in range(G):
                k = T.alloc_var("int32")
                depth = T.alloc_var("int32")
                first = T.alloc_var("int32")
                stop = T.min(T.max(stops[g], 0), K)
                with T.Task():  # one for the scheduler to place
                    k = T.max(T.min(starts[g], stop), 0)
                    depth = T.max(stop - k, PAIR)  # an empty group multiplies zeros
                    first = turns.first()
                source = Source(Matrix(ending_at(A, stop)), Matrix(ending_at(B, stop)), None, None)
                for step in range(T.ceildiv(rows * columns - first, cores)):
                    m, n = banded(variant, step * cores + first, rows, columns, 0)
                    at = Place(m, n, k, depth)
                    outputs = Outputs(Matrix(D, (g,)), columns=N, factor=T.float32(1))
                    compute_tile(variant, buffers, source, outputs, at)
                turns.pass_on(rows * columns)

    return gathered_k_gemm
