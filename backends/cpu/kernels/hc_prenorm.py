"""Hyper-connection pre-norm GEMM on the CPU: float32 BLAS over row tiles of fixed height."""

from __future__ import annotations

import torch

from unikernels.operations.hc_prenorm import HcPrenormProblem, round_to_tf32

from .row_invariant import padded_tile, row_sums_of_squares, row_tiles

#: Granularity of the split points along K.
_BLOCK_K = 64


def hc_prenorm_gemm(problem: HcPrenormProblem) -> None:
    """D = A @ tf32(B).T and sums of squares, split along K; equal rows of A give equal bits."""
    b = round_to_tf32(problem.b)
    num_splits, num_blocks = problem.num_splits, problem.k // _BLOCK_K
    bounds = [_BLOCK_K * (num_blocks * split // num_splits) for split in range(num_splits + 1)]
    for rows in row_tiles(problem.m):
        count = rows.stop - rows.start
        tile = padded_tile(problem.a[rows])
        for split in range(num_splits):
            start, stop = bounds[split], bounds[split + 1]
            if start == stop:
                problem.d[split, rows] = 0
                problem.sqr_sum[split, rows] = 0
                continue
            part = tile[:, start:stop]
            problem.d[split, rows] = torch.mm(part, b[:, start:stop].T)[:count]
            problem.sqr_sum[split, rows] = row_sums_of_squares(part[:count])
