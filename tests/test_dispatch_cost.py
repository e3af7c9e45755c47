"""What a call costs before any arithmetic: validation, normalisation, dispatch. Processor time of the best of many runs, so that other load matters little."""

from __future__ import annotations

import time

import torch

import unikernels as uk
from unikernels import _registry


def _best_seconds(function, repeats=30, inner=200):
    """Return seconds per call without the cost of the surrounding loop and lambda."""
    return _timed(function, repeats, inner) - _timed(lambda: None, repeats, inner)


def _timed(function, repeats, inner):
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(inner):
            function()
        best = min(best, (time.thread_time() - start) / inner)
    return best


def test_empty_problem_costs_at_most_15_us():
    a = (torch.empty(0, 256).to(torch.float8_e4m3fn), torch.empty(0, 2))
    b = (torch.zeros(128, 256).to(torch.float8_e4m3fn), torch.ones(1, 2))
    d = torch.empty(0, 128, dtype=torch.bfloat16)
    assert _best_seconds(lambda: uk.fp8_gemm_nt(a, b, d)) <= 15e-6


def test_backend_lookup_costs_at_most_half_a_us():
    d = torch.empty(4, 4)
    assert _best_seconds(lambda: _registry.bound("gemm", d)) <= 0.5e-6
