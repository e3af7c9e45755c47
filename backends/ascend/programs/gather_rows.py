"""The TileLang program that gathers rows of a bfloat16 matrix, on the vector cores.

Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .variants import GatherRowsVariant
from .vector_steps import row_of_zeros


def build(variant: GatherRowsVariant) -> Any:
    """Return the prim_func (source [R, C], indices [N] int32, gathered [N, C]): rows of the source, zeros for no row."""
    R, C, N, lds = (T.dynamic(name) for name in ("R", "C", "N", "lds"))
    block, cores = variant.block, variant.num_cores

    @T.prim_func
    def gather_rows(
        source: T.StridedTensor((R, C), (lds, 1), "bfloat16"),
        indices: T.Tensor((N,), "int32"),
        gathered: T.Tensor((N, C), "bfloat16"),
    ):
        with T.Kernel(cores) as core:
            moved = T.alloc_shared((1, block), "bfloat16")
            T.annotate_buffer_versions({moved: 2})
            zeros = row_of_zeros(block, "bfloat16")
            parts = T.ceildiv(C, block)
            for step in range(T.ceildiv(N * parts - core, cores)):
                row = T.alloc_var("int32")
                column = T.alloc_var("int32")
                index = T.alloc_var("int32")
                row = (step * cores + core) // parts
                column = (step * cores + core) % parts * block
                T.assume(row >= 0 and row < N)
                T.assume(column >= 0 and column < C)
                index = indices[row]
                if index >= 0 and index < R:
                    T.assume(index >= 0 and index < R)
                    T.copy(source[index : index + 1, column : column + block], moved)
                    T.copy(moved, gathered[row : row + 1, column : column + block])
                else:
                    T.copy(zeros, gathered[row : row + 1, column : column + block])

    return gather_rows
