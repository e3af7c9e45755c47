"""The TileLang program that adds up partial products of a split K, always in the same order, on the vector cores.

Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .variants import SumSplitsVariant
from .vector_steps import THREADS


def build(variant: SumSplitsVariant) -> Any:
    """Return the prim_func (parts [splits, E] float32, D [E]): D = the sum of the parts, rounded once."""
    E = T.dynamic("E")
    splits, block, cores = variant.splits, variant.block, variant.num_cores

    @T.prim_func
    def sum_splits(parts: T.Tensor((splits, E), "float32"), D: T.Tensor((E,), variant.out)):
        with T.Kernel(cores) as core:
            loaded = T.alloc_shared((splits, block), "float32")
            total = T.alloc_shared((block,), variant.out)
            T.annotate_buffer_versions({loaded: 1, total: 1})
            for step in range(T.ceildiv(T.ceildiv(E, block) - core, cores)):
                start = T.alloc_var("int32")
                start = (step * cores + core) * block
                T.assume(start >= 0 and start < E)
                T.copy(parts[0:splits, start : start + block], loaded)
                with T.SimtVF(threads=THREADS):
                    for i in T.Parallel(block):
                        value = T.alloc_var("float32")
                        value = loaded[0, i]
                        for part in T.serial(splits - 1):
                            value = value + loaded[part + 1, i]
                        total[i] = T.cast(value, variant.out)
                T.copy(total, D[start : start + block])

    return sum_splits
