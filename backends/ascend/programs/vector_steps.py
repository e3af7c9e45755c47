"""What programs of the vector cores share. Importing this module imports TileLang."""

# mypy: ignore-errors
# TileLang rewrites macros from their source: assignments declare buffers and variables.

from typing import Any

import tilelang.ascend.language as T

THREADS = 256  # of a SIMT function


@T.macro
def row_of_zeros(columns: int, dtype: str) -> Any:
    """Return a tile [1, columns] in UB that holds zeros."""
    zeros = T.alloc_shared((1, columns), dtype)
    T.annotate_buffer_versions({zeros: 1})
    with T.SimtVF(threads=THREADS):
        for i in T.Parallel(columns):
            zeros[0, i] = 0
    return zeros
