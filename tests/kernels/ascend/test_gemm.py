"""Dense GEMM on Ascend: exact on small integers with power-of-two scales, for every format, major, tail and epilogue."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.kernels import gemm_tiles
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


@pytest.mark.slow
@pytest.mark.parametrize("element", ["bf16", "fp8", "fp4"])
@pytest.mark.parametrize("shape", gemm_tiles._SHAPES)
def test_every_tile_shape_is_exact(ascend, small_integers, quantised, monkeypatch, element, shape):
    """Small problems choose short tiles by themselves; here each candidate runs, over several rounds and K steps."""
    monkeypatch.setattr(gemm_tiles, "_SHAPES", (shape,))
    uk.use_deterministic_algorithms(True)  # a divided K would look for tiles of its own
    uk.set_num_sms(2)
    m, n, k = 2 * shape[0] + 3, 2 * shape[1] + 5, 2080
    left, right = small_integers(m, k), small_integers(n, k)
    d = torch.empty(m, n)
    if element == "bf16":
        uk.bf16_gemm_nt(left.bfloat16(), right.bfloat16(), d)
        assert torch.equal(d, left @ right.T)
        return
    generator = torch.Generator().manual_seed(3)
    a, sfa, a_values = quantised(left, element, True, generator)
    b, sfb, b_values = quantised(right, element, True, generator)
    uk.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, recipe=(1, 1, 32))
    assert torch.equal(d, a_values @ b_values.T)


def test_rows_do_not_depend_on_their_neighbours(ascend):
    """Random values round at every step: equal bits mean equal order of all additions, whatever M and the tiles."""
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(rows, 1000, generator=generator).bfloat16() for rows in (200, 33))
    whole, repeated = torch.empty(200, 33), torch.empty(200, 33)
    uk.use_deterministic_algorithms(True)
    uk.bf16_gemm_nt(a, b, whole)
    uk.bf16_gemm_nt(a, b, repeated)
    assert torch.equal(whole, repeated)
    for first, last in ((0, 1), (7, 40), (199, 200)):
        part = torch.empty(last - first, 33)
        uk.bf16_gemm_nt(a[first:last], b, part)
        assert torch.equal(part, whole[first:last]), (first, last)
