"""The TileLang program of the dense GEMM: a walk over the tiles of D. The steps of a tile are in *_steps.py.

Importing this module imports TileLang. Which variant a problem needs is decided in gemm.py, the tile sizes in gemm_tiles.py.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .epilogue_steps import Outputs
from .gemm_steps import Place, Source
from .gemm_variant import GemmVariant
from .gm_steps import Matrix, elements, gm_types
from .tile_steps import buffers_of, compute_tile
from .walk_steps import banded


def build(variant: GemmVariant) -> Any:
    """Return the prim_func of a variant: D = epilogue(A @ B.T), dynamic in M, N and K.

    Its arguments are always (A, B, SA, SB, C, D, SFD, count, factor, head, middle, right). Scales are int16
    [ceil(K / 64), mn], or one unused word; FP4 operands are bytes [mn, K / 2], without pitch where the cube reads FP4.
    C and what comes after D belong to the epilogue, see `Outputs`, and are otherwise unused.
    """
    types = gm_types(variant)
    M, N, K = types.sizes
    bm, bn, cores = variant.tiles.m, variant.tiles.n, variant.num_cores

    @T.prim_func
    def gemm(
        A: types.a,
        B: types.b,
        SA: types.sa,
        SB: types.sb,
        C: types.c,
        D: types.d,
        SFD: types.sfd,
        count: T.Tensor((1,), "int32"),
        factor: T.float32,
        head: T.int32,
        middle: T.int32,
        right: T.int32,
    ):
        with T.MixedKernel(cores) as (core, vector_core):
            a = elements(variant, A, M, K)
            b = elements(variant, B, N, K)
            source = Source(Matrix(a), Matrix(b), Matrix(SA), Matrix(SB))
            buffers = buffers_of(variant, vector_core)
            outputs = Outputs(Matrix(D), Matrix(C), Matrix(SFD), count, N, factor, (head, middle, right))
            rows = T.ceildiv(M, bm)
            columns = T.ceildiv(N, bn)
            for step in range(T.ceildiv(rows * columns - core, cores)):
                m, n = banded(variant, step * cores + core, rows, columns, 0)
                at = Place(m, n, 0, K)
                compute_tile(variant, buffers, source, outputs, at)

    return gemm
