"""FP4 that the cube cannot read becomes FP8 on the vector cores, in the kernel that multiplies; every product stays exact."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.kernels.gemm_tiles import fits, footprint
from unikernels.backends.ascend.programs.gemm_variant import GemmForm, Packed, Tiles
from unikernels.backends.ascend.runtime import simulated
from unikernels.operations.gemm import E2M1_VALUES


@pytest.fixture
def problem(small_integers, quantised):
    """A function (m, n, k, kinds, majors) -> (a, b, exact product)."""
    generator = torch.Generator().manual_seed(5)

    def make(m, n, k, kinds, majors):
        a, sfa, left = quantised(small_integers(m, k), kinds[0], majors[0], generator)
        b, sfb, right = quantised(small_integers(n, k), kinds[1], majors[1], generator)
        return (a, sfa), (b, sfb), left @ right.T

    return make


def test_every_pair_of_codes(ascend):
    k, n = 64, 256
    codes = torch.arange(n, dtype=torch.uint8)[:, None].expand(n, k // 2).contiguous()
    words = torch.full((k // 64, n), 0x7F7F, dtype=torch.int16).mT  # scales of 1
    d = torch.empty(k, n)
    uk.fp8_fp4_gemm_nt(
        (torch.eye(k).to(torch.float8_e4m3fn), words[:k].mT.contiguous().mT), (codes.view(torch.int8), words), d,
        recipe=(1, 1, 32),
    )  # fmt: skip
    values = torch.tensor(E2M1_VALUES)
    pairs = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], -1)
    assert torch.equal(d, pairs.view(n, k).T)


@pytest.mark.parametrize(
    ("kinds", "majors"),
    [
        (("fp8", "fp4"), (True, True)),
        (("fp8", "fp4"), (False, False)),
        (("fp4", "fp8"), (True, True)),
        (("fp4", "fp8"), (False, True)),
        (("fp4", "fp4"), (True, False)),
    ],
)
def test_products_are_exact_in_any_order(ascend, problem, monkeypatch, force_tiles, kinds, majors):
    """Four tiles per core and five steps along K, all with tails; instructions overlap at random, hazards raise."""
    uk.set_num_sms(2)
    force_tiles(64, 128, 256)
    a, b, product = problem(102, 386, 1190, kinds, majors)
    for seed in (None, 1, 2):
        d = torch.full(product.shape, 7.0, dtype=torch.bfloat16)
        monkeypatch.setattr(simulated, "simulate", functools.partial(simulated.simulate, seed=seed))
        with simulated.recorded_reports() as reports:
            uk.fp8_fp4_gemm_nt(a, b, d, recipe=(1, 1, 32))
        assert torch.equal(d, product.bfloat16()), seed
        assert len(reports) == 1  # nothing is expanded beforehand


def test_pitch(ascend, problem):
    (a, sfa), (b, sfb), product = problem(37, 70, 200, ("fp8", "fp4"), (True, True))
    frame = torch.full((70, 120), 0x77, dtype=torch.int8)
    frame[:, 3:103] = b
    d = torch.empty(37, 70)
    uk.fp8_fp4_gemm_nt((a, sfa), (frame[:, 3:103], sfb), d, recipe=(1, 1, 32))
    assert torch.equal(d, product)


def test_epilogue(ascend, problem):
    a, b, product = problem(37, 70, 200, ("fp8", "fp4"), (True, True))
    c = torch.arange(37 * 70.0).view(37, 70)
    d = torch.empty(37, 70)
    uk.fp8_fp4_gemm_nt(a, b, d, c=c, alpha=-0.375, recipe=(1, 1, 32))
    assert torch.equal(d, c - 0.375 * product)


def test_expanded_tiles_count_as_memory():
    form, tiles = GemmForm("fp8", True, True, True, "bfloat16", "store", 32), Tiles(128, 96, 256, 128)
    for packed, codes, values in (
        (Packed("a", True), 64 * 128, 8 * 65 * 32),  # half of 128 rows, 256 columns
        (Packed("b", True), 48 * 128, 8 * 49 * 32),
        (Packed("b", False), 128 * 128, 3 * 129 * 32),  # half of 256 rows, 96 columns in one register
    ):
        assert footprint(replace(form, packed=(packed,)), tiles)["UB"] == 2 * (codes + values)
    tiles = Tiles(128, 256, 256, 128)
    form = replace(form, out="float32", epilogue="scale")
    assert fits(form, tiles)
    assert not fits(replace(form, packed=(Packed("b", True),)), tiles)  # 131072 + 98816 of 221184 bytes


@pytest.mark.slow
def test_expansion_is_predicted_to_hide_behind_the_cube(ascend):
    m, n, k = 4096, 7168, 16384
    a, b = (torch.empty(rows, k, dtype=torch.float8_e4m3fn) for rows in (m, n))
    codes = torch.empty(n, k // 2, dtype=torch.int8)
    sfa, sfb = (torch.empty(k // 64, rows, dtype=torch.int16).mT for rows in (m, n))
    d = torch.empty(m, n, dtype=torch.bfloat16)
    with simulated.timing_only(), simulated.recorded_reports() as reports:
        uk.fp8_fp4_gemm_nt((a, sfa), (codes, sfb), d, recipe=(1, 1, 32))
        uk.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, recipe=(1, 1, 32))
    mixed, plain = (report.time_us for report in reports)
    assert mixed < 1.01 * plain
    assert 2 * m * n * k / mixed / 1e6 > 0.97 * 861  # TFLOPS published for this shape
