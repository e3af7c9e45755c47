"""Dense GEMM on Ascend: exact on small integers with power-of-two scales, for every format, major, tail and epilogue."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.programs.gemm_variant import ELEMENT_BITS
from unikernels.backends.ascend.runtime.simulated import recorded_reports
from unikernels.errors import UnsupportedOperationError


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_bf16_is_exact(ascend, small_integers, layout):
    for m, n, k in ((33, 65, 200), (70, 300, 40), (1, 1, 1)):
        a, b, d = small_integers(m, k), small_integers(n, k), torch.empty(m, n, dtype=torch.bfloat16)
        left = a.bfloat16() if layout[0] == "n" else a.bfloat16().mT.contiguous()
        right = b.bfloat16() if layout[1] == "t" else b.bfloat16().mT.contiguous()
        getattr(uk, f"bf16_gemm_{layout}")(left, right, d)
        assert torch.equal(d, (a @ b.T).bfloat16()), (m, n, k)  # the exact sum, rounded once


@pytest.mark.parametrize(
    ("kinds", "majors"),
    [
        (("fp8", "fp8"), (True, True)),
        (("fp8", "fp4"), (False, True)),
        (("fp4", "fp8"), (True, False)),
        (("fp4", "fp4"), (True, True)),
        (("fp4", "fp4"), (False, False)),
    ],
)
def test_scaled_operands_are_exact(ascend, small_integers, quantised, kinds, majors):
    generator = torch.Generator().manual_seed(2)
    for m, n, k in ((34, 66, 200), (4, 6, 34), (66, 300, 832)):
        left, right = small_integers(m, k), small_integers(n, k)
        a, sfa, a_values = quantised(left, kinds[0], majors[0], generator)
        b, sfb, b_values = quantised(right, kinds[1], majors[1], generator)
        d = torch.empty(m, n, dtype=torch.bfloat16)
        uk.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, recipe=(1, 1, 32))
        assert torch.equal(d, (a_values @ b_values.T).bfloat16()), (m, n, k)


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_c_and_alpha_round_once(ascend, small_integers, out):
    a, b, c = small_integers(37, 96), small_integers(45, 96), small_integers(37, 45).to(out)
    expected = (c.float() - 0.375 * (a @ b.T)).to(out)
    d = torch.full((37, 45), 7.0, dtype=out)
    uk.bf16_gemm_nt(a.bfloat16(), b.bfloat16(), d, c=c, alpha=-0.375)
    assert torch.equal(d, expected)
    uk.bf16_gemm_nt(a.bfloat16(), b.bfloat16(), c, c=c, alpha=-0.375)  # in place
    assert torch.equal(c, expected)


def test_pitches_and_expanded_operands(ascend, small_integers):
    wide, b = small_integers(20, 300).bfloat16(), small_integers(17, 100).bfloat16()
    frame = torch.full((20, 40), 7.0)
    uk.bf16_gemm_nt(wide[:, 100:200], b, frame[:, 3:20])
    assert torch.equal(frame[:, 3:20], wide[:, 100:200].float() @ b.float().T)
    assert (frame[:, :3] == 7).all()
    assert (frame[:, 20:] == 7).all()
    row = small_integers(1, 100).bfloat16()
    d = torch.empty(20, 17)
    uk.bf16_gemm_nt(row.expand(20, 100), b, d)
    assert torch.equal(d, (row.float() @ b.float().T).expand(20, 17))


def test_unscaled_fp8_is_taken_at_face_value(ascend, small_integers):
    a, b, d = small_integers(33, 200), small_integers(40, 200), torch.empty(33, 40)
    uk.cublaslt_gemm_nt(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), d)
    assert torch.equal(d, a @ b.T)


def test_fewer_cores_give_the_same_bits(ascend, small_integers):
    generator = torch.Generator().manual_seed(6)
    a, b = (torch.randn(rows, 96, generator=generator).bfloat16() for rows in (150, 600))
    results = []
    for cores in (3, ascend.num_cores()):
        uk.set_num_sms(cores)
        d = torch.empty(150, 600)
        uk.bf16_gemm_nt(a, b, d)
        results.append(d)
    assert torch.equal(*results)


def test_unsupported_problems_say_why(ascend):
    a = torch.ones(4, 64).to(torch.float8_e4m3fn)
    odd = torch.full((4, 2), 0.75)
    d = torch.full((4, 4), 7.0)
    with pytest.raises(UnsupportedOperationError, match=r"powers of two.*use_ue8m0=True"):
        uk.fp8_fp4_gemm_nt((a, odd), (a, odd), d, recipe=(1, 1, 32))
    assert (d == 7).all()


def test_simulated_reports_are_collected(ascend, small_integers):
    a = small_integers(8, 64).bfloat16()
    with recorded_reports() as reports:
        uk.bf16_gemm_nt(a, a, torch.empty(8, 8))
    (report,) = reports
    assert report.instruction_counts()["asc_mmad"] == 1


#: Rows, columns and bytes along K of tiles, with the operands that take them in every run; others do in slow runs.
_TILES = {
    (16, 16, 2048): "fp8xfp8",  # the smallest, as deep as it gets
    (48, 176, 512): "fp4xfp4",  # odd multiples of 16
    (144, 80, 1024): "fp8xfp4",
    (256, 256, 256): "bf16xbf16",  # the largest
}
_SLOW_TILES = ((128, 256, 512), (256, 128, 512), (64, 64, 512), (32, 256, 512), (16, 256, 512), (240, 16, 512))


def _tiles_and_operands():
    for tiles in (*_TILES, *_SLOW_TILES):
        for operands in ("bf16xbf16", "fp8xfp8", "fp4xfp4", "fp8xfp4"):
            marks = () if _TILES.get(tiles) == operands else pytest.mark.slow
            yield pytest.param(tiles, operands, marks=marks, id="x".join(map(str, tiles)) + f"-{operands}")


@pytest.mark.parametrize(("tiles", "operands"), list(_tiles_and_operands()))
def test_every_tile_shape_is_exact(ascend, small_integers, quantised, force_tiles, launched, tiles, operands):
    """Small problems choose short tiles by themselves; here two cores take several whole and cut ones, over K steps."""
    force_tiles(*tiles)
    uk.set_num_sms(2)
    m, n, k = 2 * tiles[0] + 3, 2 * tiles[1] + 6, 2080
    left, right, d = small_integers(m, k), small_integers(n, k), torch.full((m, n), 7.0)
    if operands == "bf16xbf16":
        uk.bf16_gemm_nt(left.bfloat16(), right.bfloat16(), d)
        expected = left @ right.T
    else:
        generator = torch.Generator().manual_seed(3)
        a_kind, b_kind = operands.split("x")
        a, sfa, a_values = quantised(left, a_kind, True, generator)
        b, sfb, b_values = quantised(right, b_kind, True, generator)
        uk.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, recipe=(1, 1, 32))
        expected = a_values @ b_values.T
    assert torch.equal(d, expected)
    (kernel,) = launched
    ran = kernel.variant
    assert (ran.tiles.m, ran.tiles.n, ran.tiles.k * ELEMENT_BITS[ran.element] // 8) == tiles
