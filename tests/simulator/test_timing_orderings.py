"""The model must show a badly made kernel as slow: plain GEMMs, well and badly tiled, pipelined and not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from unikernels.backends.ascend.simulator import simulate
from unikernels.backends.ascend.simulator.plain_gemm import Tiling, bf16_gemm
from unikernels.backends.ascend.simulator.published import time_gemm

GOOD = Tiling(128, 256, 256, 64)
THIN = Tiling(16, 256, 256, 64)
SHAPE = (1024, 2048, 4096)


@pytest.fixture(scope="module")
def report():
    """report(tiling, m, n, k): each GEMM is simulated once."""
    known = {}

    def get(tiling, m, n, k):
        if (tiling, m, n, k) not in known:
            known[tiling, m, n, k] = time_gemm("bf16", m, n, k, tiling)
        return known[tiling, m, n, k]

    return get


def test_double_buffering_hides_copies(report):
    double, single = (report(dataclasses.replace(GOOD, versions=v), *SHAPE).predict(l2="warm") for v in (2, 1))
    # One buffer: copy to L1, copy to L0 and multiply take turns, so their times add up instead of overlapping.
    assert 1.5 < single.cycles / double.cycles < 3
    busy = double.utilisation
    assert single.cycles > 0.9 * double.cycles * (busy["M"] + busy["MTE2"])
    assert single.utilisation["M"] < 0.65 < busy["M"]
    assert "flag from M" in single.stalls["MTE1"]


def test_small_tiles_are_slower_by_the_bytes_they_load_again(report):
    small = Tiling(64, 64, 256, 64)
    large, tiny = (report(t, *SHAPE).predict(l2="warm") for t in (GOOD, small))
    loads = [sum(k.read_bytes for k in timing.kernels) for timing in (large, tiny)]
    assert loads[1] / loads[0] == pytest.approx((1 / 64 + 1 / 64) / (1 / 128 + 1 / 256))
    assert tiny.utilisation["MTE2"] > 0.85
    assert 1.5 < tiny.cycles / large.cycles < loads[1] / loads[0]


def test_cold_l2_slows_a_memory_bound_shape(report):
    run = report(THIN, 16, 8192, 4096)
    cold, warm = run.predict(l2="cold"), run.predict(l2="warm")
    assert warm.hbm_bytes == 0
    assert cold.hbm_bytes == 2 * (16 * 4096 + 8192 * 4096)  # every operand byte once
    assert 1.05 < cold.cycles / warm.cycles < 4


def test_cold_l2_hardly_matters_to_a_compute_bound_shape(report):
    run = report(GOOD, 2048, 4096, 4096)
    assert 1 < run.predict(l2="cold").cycles / run.predict(l2="warm").cycles < 1.1


def test_shapes_are_bound_by_what_they_should_be(report):
    wide = report(GOOD, 2048, 4096, 4096).predict()
    # One row tile: 32 columns of B per row of A; the cube can only wait for memory.
    thin = report(THIN, 16, 8192, 4096).predict()
    assert wide.utilisation["M"] > 0.85
    assert thin.utilisation["M"] < 0.3
    assert thin.critical_pipe in ("MTE2", "HBM")
    # Bytes of B over the bandwidth of HBM are a bound that no schedule beats.
    assert thin.cycles > 2 * 8192 * 4096 / thin.rates["hbm_bytes"]
    assert 2 * 2048 * 4096 * 4096 / wide.time_us > 5 * 2 * 16 * 8192 * 4096 / thin.time_us


def test_slower_memory_is_slower(report):
    run = report(THIN, 16, 8192, 4096)
    assert run.predict(rates={"hbm_bytes": 970}).cycles > 1.4 * run.predict().cycles


def test_no_prediction_beats_the_cube(report):
    for tiling in (GOOD, Tiling(64, 64, 256, 64)):
        timing = report(tiling, *SHAPE).predict(l2="warm")
        m, n, k = SHAPE
        assert timing.kernels[0].macs == m * n * k
        assert timing.cycles > m * n * k / 4096 / 32


def test_half_the_cores_take_twice_as_long(report):
    run = report(GOOD, *SHAPE)
    times = [run.predict(l2="warm", rates={"ai_cores": cores}).cycles for cores in (32, 16)]
    assert times[1] / times[0] == pytest.approx(2, rel=0.1)


def test_timing_does_not_depend_on_data_or_checks():
    m, n, k = 256, 512, 512
    torch.manual_seed(0)
    a, b, d = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16(), torch.zeros(m, n, dtype=torch.bfloat16)
    checked = simulate(bf16_gemm(GOOD), a, b, d, check="on")
    torch.testing.assert_close(d.float(), a.float() @ b.float().T, rtol=1e-2, atol=1e-1)
    assert checked.time_us == time_gemm("bf16", m, n, k, GOOD).time_us
