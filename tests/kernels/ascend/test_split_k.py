"""Splitting K: where it pays and the mode allows it; exact on integers, never in deterministic mode."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.runtime.simulated import recorded_reports, timing_only

M, N, K = 16, 64, 16384


@pytest.mark.parametrize(("layout", "out"), [("nt", torch.bfloat16), ("tn", torch.float32)])
def test_parts_of_k_add_up_exactly(ascend, small_integers, layout, out):
    a, b, d = small_integers(M, K), small_integers(N, K), torch.full((M, N), 7.0, dtype=out)
    left = a.bfloat16() if layout[0] == "n" else a.bfloat16().mT.contiguous()
    right = b.bfloat16() if layout[1] == "t" else b.bfloat16().mT.contiguous()
    with recorded_reports() as reports:
        getattr(uk, f"bf16_gemm_{layout}")(left, right, d)
    assert [report.recordings[0].symbol for report in reports] == ["batched_gemm_kernel", "sum_splits_kernel"]
    assert torch.equal(d, (a.double() @ b.double().T).to(out))


def test_packed_operands_are_divided_too(ascend, small_integers, quantised):
    generator = torch.Generator().manual_seed(6)
    a, sfa, left = quantised(small_integers(M, 2 * K), "fp8", True, generator)
    b, sfb, right = quantised(small_integers(N, 2 * K), "fp4", True, generator)
    d = torch.empty(M, N)
    with recorded_reports() as reports:
        uk.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, recipe=(1, 1, 32))
    assert [report.recordings[0].symbol for report in reports] == ["batched_gemm_kernel", "sum_splits_kernel"]
    assert torch.equal(d, (left.double() @ right.double().T).float())


def test_deterministic_mode_leaves_k_whole(ascend):
    uk.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(rows, K, generator=generator).bfloat16() for rows in (M, N))
    whole, row = torch.empty(M, N), torch.empty(1, N)
    with recorded_reports() as reports:
        uk.bf16_gemm_nt(a, b, whole)
        uk.bf16_gemm_nt(a[3:4], b, row)
    assert [report.recordings[0].symbol for report in reports] == ["gemm_kernel"] * 2
    assert torch.equal(row, whole[3:4])


def test_splitting_is_predicted_to_pay(ascend):
    a, b = (torch.empty(rows, K, dtype=torch.bfloat16) for rows in (M, N))
    times = []
    for mode in (True, False):
        uk.use_deterministic_algorithms(mode)
        with timing_only(), recorded_reports() as reports:
            uk.bf16_gemm_nt(a, b, torch.empty(M, N))
        times.append(sum(report.time_us for report in reports))
    assert times[1] < times[0]
