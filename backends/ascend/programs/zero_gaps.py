"""The TileLang program that zeroes the rows of D between a group's end and the next aligned start, on the vector cores.

Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .variants import ZeroGapsVariant
from .vector_steps import row_of_zeros
from .walk_steps import Turns


def build(variant: ZeroGapsVariant) -> Any:
    """Return the prim_func (D [M, N], ends [G] int32): groups as in the psum layout."""
    M, N, G, ldd = (T.dynamic(name) for name in ("M", "N", "G", "ldd"))
    block, cores, alignment = variant.block, variant.num_cores, variant.alignment

    @T.prim_func
    def zero_gaps(D: T.StridedTensor((M, N), (ldd, 1), variant.out), ends: T.Tensor((G,), "int32")):
        with T.Kernel(cores) as core:
            zeros = row_of_zeros(block, variant.out)
            columns = T.ceildiv(N, block)
            turns = Turns(core, cores)
            stop = T.alloc_var("int32")
            stop = 0
            for g in range(G):
                first = T.alloc_var("int32")
                count = T.alloc_var("int32")
                stop = T.max(T.ceildiv(stop, alignment) * alignment, T.min(ends[g], M))
                count = (T.min(T.ceildiv(stop, alignment) * alignment, M) - stop) * columns
                first = turns.first()
                for step in range(T.ceildiv(count - first, cores)):
                    row = T.alloc_var("int32")
                    n = T.alloc_var("int32")
                    row = stop + (step * cores + first) // columns
                    n = (step * cores + first) % columns * block
                    T.assume(row >= 0 and row < M)
                    T.assume(n >= 0 and n < N)
                    T.copy(zeros, D[row : row + 1, n : n + block])
                turns.pass_on(count)

    return zero_gaps
