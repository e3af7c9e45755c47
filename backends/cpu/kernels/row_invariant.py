"""Products and row sums whose rows do not depend on where they stand or how many others there are.

BLAS picks another summation order for other row counts, so products run in tiles of one fixed size, the last one padded
with zeros. Which operation a tile belongs to is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: A multiple of the register-block heights BLAS kernels use (2, 3, 4, 6, 8, 12, 16, 24): no row meets a remainder loop.
ROW_TILE = 48

#: Partial sums per row: each is one dot product, whatever the number of rows.
_PARTIAL_SUMS = 32


def row_tiles(num_rows: int) -> Iterator[slice]:
    """Yield slices of at most `ROW_TILE` rows that cover 0..num_rows."""
    for start in range(0, num_rows, ROW_TILE):
        yield slice(start, min(start + ROW_TILE, num_rows))


def padded_tile(rows: Tensor) -> Tensor:
    """Return up to `ROW_TILE` rows as float32 [ROW_TILE, k], zeros below."""
    count = rows.shape[0]
    if count == ROW_TILE:
        return rows.float()
    tile = torch.zeros((ROW_TILE, *rows.shape[1:]))
    tile[:count] = rows
    return tile


def row_sums_of_squares(rows: Tensor) -> Tensor:
    """Return sum(x^2) of every row of float32 [m, k], k a multiple of 32, as [m]."""
    parts = rows.reshape(rows.shape[0] * _PARTIAL_SUMS, 1, -1)
    return torch.bmm(parts, parts.mT).view(-1, _PARTIAL_SUMS).sum(-1)
