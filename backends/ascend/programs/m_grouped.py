"""The TileLang program of the GEMM grouped along M: a walk for labelled rows, and one for groups that say how long they are.

Importing this module imports TileLang. The steps of a tile are in *_steps.py.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .epilogue_steps import Outputs
from .gemm_steps import Place, Source
from .gm_steps import Matrix, elements, ending_at, gm_types
from .tile_steps import buffers_of, compute_tile
from .variants import MGroupedVariant
from .walk_steps import Turns, banded


def build(variant: MGroupedVariant) -> Any:
    """Return the prim_func of a variant: D[row] = epilogue(A[row] @ B[group of row].T), dynamic in all sizes.

    Its arguments are always (A, B, SA, SB, D, layout, factor): A and D [M, ..], or [G, M, ..] for the masked layout; B
    [G, ..]; scales as in the dense program, with the same leading sizes.

    Groups that say how long they are see an A and a D that end where they do: nothing behind is read or written. Tiles of
    labelled rows lie within aligned blocks and are stored whole.
    """
    gemm = variant.gemm
    G = T.dynamic("G")
    slabs = (G,) if variant.layout == "masked" else ()
    types = gm_types(gemm, slabs, (G,), slabs)
    M, N, K = types.sizes
    layout_type = T.Tensor((M,) if variant.layout == "index" else (G,), "int32")
    bm, bn, cores = gemm.tiles.m, gemm.tiles.n, gemm.num_cores
    alignment = variant.alignment

    @T.prim_func
    def m_grouped_gemm(
        A: types.a, B: types.b, SA: types.sa, SB: types.sb, D: types.d, layout: layout_type, factor: T.float32
    ):
        with T.MixedKernel(cores) as (core, vector_core):
            a = elements(gemm, A, *slabs, M, K)
            b = elements(gemm, B, G, N, K)
            buffers = buffers_of(gemm, vector_core)
            columns = T.ceildiv(N, bn)
            if variant.layout == "index":
                for step in range(T.ceildiv(T.ceildiv(M, bm) * columns - core, cores)):
                    m, n = banded(gemm, step * cores + core, T.ceildiv(M, bm), columns, 0)
                    g = T.alloc_var("int32")
                    T.assume(m >= 0 and m < M)
                    # Padding rows may stand between a group's rows, but not in front of them.
                    g = layout[m // alignment * alignment]
                    if g >= 0 and g < G:
                        T.assume(g >= 0 and g < G)
                        at = Place(m, n, 0, K)
                        source = Source(Matrix(a), Matrix(b, (g,)), Matrix(SA), Matrix(SB, (g,)))
                        compute_tile(gemm, buffers, source, Outputs(Matrix(D), columns=N, factor=factor), at)
            else:
                turns = Turns(core, cores)
                stop = T.alloc_var("int32")
                stop = 0
                for g in range(G):
                    start = T.alloc_var("int32")
                    count = T.alloc_var("int32")
                    first = T.alloc_var("int32")
                    with T.Task():
                        if variant.layout == "psum":
                            start = T.ceildiv(stop, alignment) * alignment
                            stop = T.max(start, T.min(layout[g], M))
                        else:
                            start = 0
                            stop = T.min(layout[g], M)
                        count = T.ceildiv(stop - start, bm) * columns
                        first = turns.first()
                    end = T.max(stop, 0)
                    slab = (g,) if variant.layout == "masked" else ()
                    own_a, own_d = Matrix(ending_at(a, end), slab), Matrix(ending_at(D, end), slab)
                    source = Source(own_a, Matrix(b, (g,)), Matrix(SA, slab), Matrix(SB, (g,)))
                    for step in range(T.ceildiv(count - first, cores)):
                        m, n = banded(gemm, step * cores + first, T.ceildiv(stop - start, bm), columns, start)
                        at = Place(m, n, 0, K)
                        compute_tile(gemm, buffers, source, Outputs(own_d, columns=N, factor=factor), at)
                    turns.pass_on(count)

    return m_grouped_gemm
