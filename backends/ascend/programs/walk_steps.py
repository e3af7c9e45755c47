"""Which tile a core takes next.

Cores take tiles in turn, core c the tiles c, c + cores, ... of a walk. Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites macros from their source: assignments declare buffers and variables.

from typing import Any

import tilelang.ascend.language as T

from .gemm_steps import always_conflict
from .gemm_variant import GemmVariant

BAND = 8  # tiles of M that cores work on side by side, so that they share tiles of B in L2


class Turns:
    """Whose turn it is where walks of several groups follow each other, so that the cores stay evenly loaded.

    Not macros: those copy their arguments into new variables, which take the compiler time.
    """

    def __init__(self, core: Any, cores: int) -> None:
        self._core, self._cores = core, cores
        self._next = T.alloc_var("int32", init=0)

    def first(self) -> Any:
        """Return the first tile of a group that this core takes."""
        return (self._core + self._cores - self._next[0]) % self._cores

    def pass_on(self, count: Any) -> None:
        """Count the tiles of a group, at its end."""
        T.buffer_store(self._next, (self._next[0] + count) % self._cores, 0)


@T.macro
def banded(variant: GemmVariant, index: Any, rows: Any, columns: Any, start: Any) -> tuple[Any, Any]:
    """Return first row and column of the index-th of rows x columns tiles, the first of which is at row `start`.

    Tiles go down a band of `BAND` rows of tiles, then to the next column of it.
    """
    m = T.alloc_var("int32")
    n = T.alloc_var("int32")
    band = T.alloc_var("int32")
    place = T.alloc_var("int32")
    height = T.alloc_var("int32")
    # One task for the scheduler to place, not five. `Stage` keeps its neighbours, the steps of a tile, in the order of the
    # program: searching another one takes a second where there is an epilogue, and the pipes run apart in any order.
    with T.Stage(0), T.Task():
        band = index // (BAND * columns) * BAND
        place = index % (BAND * columns)
        height = T.min(rows - band, BAND)
        m = start + (band + place % height) * variant.tiles.m
        n = place // height * variant.tiles.n
    always_conflict(m, n, band, place, height)
    return m, n
