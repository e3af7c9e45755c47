"""The native GEMM against float64: formats, majors, scale forms, tails, both compute dtypes, every instruction set."""

from __future__ import annotations

import itertools

import pytest
import torch

from unikernels import environment
from unikernels.backends.cpu import _native
from unikernels.backends.cpu.kernels.matmul import matmul_nt, matmul_nt_f32
from unikernels.operations import Operand
from unikernels.operations.gemm import dequantise
from unikernels.scale_layouts import ScaleFormat, Scales
from unikernels.testing import assert_bitwise_equal, assert_close
from unikernels.utils import per_block_cast_to_fp8, per_token_cast_to_fp8

KINDS = ["fp8", "fp4", "bf16", "fp32"]
FORMS = {
    "fp32_128x128": (ScaleFormat.FP32, 128, 128),
    "fp32_1x16": (ScaleFormat.FP32, 1, 16),
    "int32_1x32": (ScaleFormat.UE8M0X4_INT32, 1, 32),
    "int16_1x32": (ScaleFormat.UE8M0X2_INT16, 1, 32),
}
#: Float32 sums against float64: each product is exact or rounded once, the order of summation differs.
FP32_TOLERANCE = 1e-11
BF16_TOLERANCE = 1e-5


def product(a: Operand, b: Operand) -> torch.Tensor:
    return dequantise(a) @ dequantise(b).T


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("a_kind", "b_kind"), list(itertools.product(KINDS, KINDS)))
def test_products_of_all_kinds(make_operand, isa, a_kind, b_kind, form):
    scale_format, gran_n, gran_k = FORMS[form]
    if isa.endswith("bf16") and ("fp32" in (a_kind, b_kind) or form == "fp32_1x16"):
        pytest.skip("bfloat16 does not hold these operands")
    for m, n, k in [(1, 1, 2), (2, 37, 96), (3, 20, 98), (4, 6, 352), (5, 49, 40), (16, 70, 258), (50, 34, 514)]:
        scales = (scale_format, 1, gran_k), (scale_format, gran_n, gran_k)
        a = make_operand(a_kind, m, k, *(scales[0] if a_kind.startswith("fp") and a_kind != "fp32" else ()), padding=8)
        b = make_operand(b_kind, n, k, *(scales[1] if b_kind.startswith("fp") and b_kind != "fp32" else ()), padding=16)
        out = torch.full((m, n + 5), 7.0)
        matmul_nt(a, b, out[:, :n], isa=isa)
        assert_close(out[:, :n], product(a, b), FP32_TOLERANCE, f"{m}x{n}x{k}")
        assert bool((out[:, n:] == 7.0).all()), "columns beside the output were written"


@pytest.mark.parametrize(("a_major", "b_major"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_mn_major_operands(make_operand, isa, kind, a_major, b_major):
    if isa.endswith("bf16") and kind == "fp32":
        pytest.skip("bfloat16 does not hold these operands")
    scales = (ScaleFormat.UE8M0X2_INT16, 1, 32) if kind in ("fp8", "fp4") else ()
    for m, n, k in [(2, 6, 34), (14, 38, 96), (34, 130, 270), (80, 50, 260)]:
        a = make_operand(kind, m, k, *scales, k_major=a_major, padding=4)
        b = make_operand(kind, n, k, *scales, k_major=b_major, padding=2)
        out = torch.empty(m, n)
        matmul_nt(a, b, out, isa=isa)
        assert_close(out, product(a, b), FP32_TOLERANCE, f"{m}x{n}x{k}")


@pytest.mark.parametrize("m", [1, 7, 40])
@pytest.mark.parametrize(
    ("a_scales", "b_scales"),
    [
        ((ScaleFormat.FP32, 1, 128), (ScaleFormat.FP32, 128, 128)),
        ((ScaleFormat.FP32, 1, 32), (ScaleFormat.FP32, 1, 128)),
        ((ScaleFormat.FP32, 1, 512), (ScaleFormat.FP32, 16, 64)),
        ((ScaleFormat.FP32, 1, 64), (ScaleFormat.UE8M0X2_INT16, 1, 32)),
        ((ScaleFormat.UE8M0X4_INT32, 1, 128), (ScaleFormat.FP32, 128, 256)),
        ((ScaleFormat.FP32, 1, 128), None),
    ],
    ids=str,
)
def test_float_scales_of_blocks_that_fit_each_other(make_operand, isa, m, a_scales, b_scales):
    for n, k in [(20, 514), (150, 1100)]:
        a, b = make_operand("fp8", m, k, *a_scales), make_operand("fp4", n, k, *(b_scales or ()))
        out = torch.full((m, n), 7.0)
        matmul_nt(a, b, out, isa=isa)
        assert_close(out, product(a, b), FP32_TOLERANCE, f"{m}x{n}x{k}")


@pytest.mark.parametrize(("m", "most"), [(2, 0.75), (64, 0.5)])
def test_float_scales_on_sums_are_more_accurate_than_on_elements(isa, m, most):
    generator = torch.Generator().manual_seed(0)
    n, k = 256, 2048
    x, y = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator)
    (a, sfa), (b, sfb) = per_token_cast_to_fp8(x, use_ue8m0=False), per_block_cast_to_fp8(y, use_ue8m0=False)
    left = Operand(a, "fp8", m, k, True, Scales(sfa, ScaleFormat.FP32, 1, 128, m, k))
    right = Operand(b, "fp8", n, k, True, Scales(sfb, ScaleFormat.FP32, 128, 128, n, k))
    exact = product(left, right)
    out = torch.empty(m, n)
    matmul_nt(left, right, out, isa=isa)
    assert (out - exact).norm() < 2e-7 * exact.norm()
    folded = dequantise(left, torch.float32) @ dequantise(right, torch.float32).T
    assert (out - exact).norm() < most * (folded - exact).norm()


def test_float_scales_of_blocks_that_do_not_fit_are_multiplied_in_float32(make_operand):
    a = make_operand("fp8", 20, 288, ScaleFormat.FP32, 1, 96)
    b = make_operand("fp8", 30, 288, ScaleFormat.FP32, 1, 64)
    out = torch.empty(20, 30)
    matmul_nt(a, b, out)
    assert_close(out, product(a, b), FP32_TOLERANCE)
    if "avx512_bf16" in _native.isa_variants():
        with pytest.raises(ValueError, match="needs operands"):
            matmul_nt(a, b, out, isa="avx512_bf16")


def test_non_finite_float_scales_reach_exactly_their_outputs(make_operand, isa):
    a = make_operand("fp8", 20, 256, ScaleFormat.FP32, 1, 128)
    b = make_operand("fp8", 40, 256, ScaleFormat.FP32, 1, 128)
    a.scales.data[3, 1] = b.scales.data[17, 0] = float("nan")
    out = torch.empty(20, 40)
    matmul_nt(a, b, out, isa=isa)
    expected = torch.zeros(20, 40, dtype=torch.bool)
    expected[3, :] = expected[:, 17] = True
    assert torch.equal(out.isnan(), expected)


@pytest.mark.parametrize("row_major_scales", [True, False])
@pytest.mark.parametrize("m", [1, 3, 20])
def test_exponents_at_the_ends_of_their_range(make_operand, isa, m, row_major_scales):
    # Large times small, so that products stay finite: the ends leave the range in which factors can be folded.
    a = make_operand("fp8", m, 96, ScaleFormat.UE8M0X2_INT16, exponents=(8, 20), row_major_scales=row_major_scales)
    b = make_operand("fp8", 33, 96, ScaleFormat.UE8M0X4_INT32, exponents=(232, 246), row_major_scales=row_major_scales)
    out = torch.empty(m, 33)
    matmul_nt(a, b, out, isa=isa)
    assert_close(out, product(a, b), FP32_TOLERANCE)


@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("scale_format", [ScaleFormat.UE8M0X4_INT32, ScaleFormat.UE8M0X2_INT16])
@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_every_code_with_every_exponent_times_one(isa, kind, scale_format, k_major):
    """The product with the identity shows each decoded element as the packed kernels see it; larger exponents give infinity."""
    exponents = torch.arange(1, 247, dtype=torch.uint8)[:, None].repeat(1, 8)
    codes = torch.arange(256, dtype=torch.uint8).repeat(246, 1)
    codes[(codes & 0x7F) == 0x7F] = 0
    # fp4: a byte per two elements along K, so that K is twice as long; columns of MN-major data hold 123 bytes of two rows.
    k = 256 if kind == "fp8" else 512
    if kind == "fp4" and not k_major:
        codes = codes[:123].repeat(1, 2).roll(3, 0)
    data = codes.view(torch.float8_e4m3fn if kind == "fp8" else torch.int8)
    data = data if k_major else data.mT.contiguous().mT
    words = exponents.repeat(1, k // 256).view(scale_format.dtype).mT.contiguous().mT
    b = Operand(data, kind, 246, k, k_major, Scales(words, scale_format, 1, 32, 246, k))
    identity = Operand(torch.eye(k).bfloat16(), "bf16", k, k, True)
    out = torch.empty(k, 246)
    matmul_nt(identity, b, out, isa=isa)
    expected = dequantise(b, torch.float32).T
    # Multiplying bfloat16 pairs takes subnormal numbers for zero.
    is_normal = (expected.abs() >= 2.0**-126) | (expected == 0)
    assert torch.equal(out[is_normal], expected[is_normal])
    assert bool((out[~is_normal].abs() <= 2.0**-126).all())


@pytest.mark.parametrize("m", [1, 4, 5, 64])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_nan_codes_and_scales_reach_exactly_their_outputs(make_operand, compute, m):
    a = make_operand("fp8", m, 64, ScaleFormat.UE8M0X2_INT16)
    b = make_operand("fp8", 40, 64, ScaleFormat.UE8M0X2_INT16)
    a.data.view(torch.uint8)[m - 1, 63] = 0x7F
    b.data.view(torch.uint8)[7, 0] = 0xFF
    b.scales.data[20, 0] |= 0xFF
    out = torch.empty(m, 40, dtype=torch.bfloat16)
    matmul_nt(a, b, out, compute=compute)
    expected = torch.zeros(m, 40, dtype=torch.bool)
    expected[m - 1, :] = expected[:, 7] = expected[:, 20] = True
    assert torch.equal(out.isnan(), expected)


@pytest.mark.parametrize("m", [2, 33])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_addend_and_alpha_are_applied_before_the_one_rounding(make_operand, isa, m, out_dtype):
    a = make_operand("bf16", m, 96)
    b = make_operand("fp4", 50, 96, ScaleFormat.UE8M0X2_INT16, exponents=(124, 128))
    exact = product(a, b)
    # A bfloat16 addend cancels the product up to the addend's own rounding: a product rounded first would show.
    c = ((0.375 if out_dtype is torch.bfloat16 else 0.25) * exact).to(out_dtype)
    kept = c.clone()
    out = torch.empty(m, 50, dtype=out_dtype)
    matmul_nt(a, b, out, accumulate=c, alpha=-0.375, isa=isa)
    expected = kept.double() - 0.375 * exact
    assert_close(out, expected, BF16_TOLERANCE if out_dtype is torch.bfloat16 else FP32_TOLERANCE, "another tensor")
    assert_bitwise_equal(c, kept, "c is an input")
    matmul_nt(a, b, c, accumulate=c, alpha=-0.375, isa=isa)
    assert_bitwise_equal(c, out, "in place")


def test_bf16_output_is_the_rounded_fp32_output(make_operand, isa):
    a = make_operand("fp8", 21, 128, ScaleFormat.UE8M0X2_INT16)
    b = make_operand("fp8", 45, 128, ScaleFormat.UE8M0X2_INT16)
    wide, narrow = torch.empty(21, 45), torch.empty(21, 45, dtype=torch.bfloat16)
    matmul_nt(a, b, wide, isa=isa)
    matmul_nt(a, b, narrow, isa=isa)
    assert_bitwise_equal(narrow, wide.bfloat16())


@pytest.mark.parametrize("pair", [("fp8", "fp8"), ("fp8", "fp4"), ("fp4", "fp4"), ("bf16", "bf16")])
def test_bfloat16_panels_give_the_same_products(make_operand, monkeypatch, pair):
    monkeypatch.setattr("unikernels.backends.cpu.kernels.matmul.multiplies_in_torch", lambda: True)
    monkeypatch.setattr("unikernels.backends.cpu.kernels.matmul.PANEL_BYTES", 32 << 10)  # several panels of each side
    scales = (ScaleFormat.UE8M0X2_INT16, 1, 32) if pair[0] != "bf16" else ()
    a, b = make_operand(pair[0], 130, 256, *scales), make_operand(pair[1], 150, 256, *scales)
    out = torch.full((130, 160), 7.0, dtype=torch.bfloat16)
    matmul_nt(a, b, out[:, :150], compute="bf16")
    assert_close(out[:, :150], product(a, b), BF16_TOLERANCE)
    assert bool((out[:, 150:] == 7.0).all())


def test_bfloat16_panels_are_not_used_where_they_would_round(make_operand, monkeypatch):
    def refuse(*_args: object) -> None:
        raise AssertionError("bfloat16 panels were used")

    monkeypatch.setattr("unikernels.backends.cpu.kernels.matmul.multiplies_in_torch", lambda: True)
    monkeypatch.setattr("unikernels.backends.cpu.kernels.matmul._torch_bf16", refuse)
    exact = (ScaleFormat.UE8M0X2_INT16, 1, 32)
    a, b = make_operand("fp8", 64, 96, *exact), make_operand("fp8", 40, 96, *exact)
    odd = make_operand("fp8", 40, 96, ScaleFormat.FP32, 1, 32)
    out = torch.zeros(64, 40, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="panels were used"):
        matmul_nt(a, b, out, compute="bf16")
    matmul_nt(a, odd, out, compute="bf16")
    assert_close(out, product(a, odd), BF16_TOLERANCE)
    for arguments in ({"alpha": 2.0}, {"accumulate": out}, {"compute": "fp32"}):
        matmul_nt(a, b, out, **{"compute": "bf16", **arguments})
    matmul_nt(a, b, torch.empty(64, 40), compute="bf16")


def test_power_of_two_float_scales_count_as_exact(make_operand):
    scales = torch.tensor([[1.0, 0.5, -4.0]])
    a = Operand(
        torch.ones(1, 96).to(torch.float8_e4m3fn), "fp8", 1, 96, True, Scales(scales, ScaleFormat.FP32, 1, 32, 1, 96)
    )
    from unikernels.backends.cpu.kernels.matmul import _fields

    assert _native.is_exact_in_bf16(_fields(a))
    scales[0, 1] = 0.75
    assert not _native.is_exact_in_bf16(_fields(a))


def test_environment_chooses_thecompute_dtype(monkeypatch):
    from unikernels.backends.cpu.kernels import matmul

    for name in ("bf16", "fp32"):
        monkeypatch.setenv("UNIKERNELS_CPU_COMPUTE", name)
        environment.forget()
        assert matmul.compute_dtype() == name
    monkeypatch.undo()
    environment.forget()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 32), (4, 0, 32), (3, 5, 0)])
def test_empty_sizes(m, n, k):
    a = Operand(torch.ones(m, k, dtype=torch.bfloat16), "bf16", m, k, True)
    b = Operand(torch.ones(n, k, dtype=torch.bfloat16), "bf16", n, k, True)
    c = torch.full((m, n), 3.0)
    out = torch.full((m, n), 7.0)
    matmul_nt(a, b, out, accumulate=c, alpha=2.0)
    assert bool((out == 3.0).all())
    assert torch.equal(matmul_nt_f32(a, b), torch.zeros(m, n))


def test_rows_do_not_depend_on_their_number(make_operand, isa):
    a = make_operand("bf16", 70, 300)
    b = make_operand("fp8", 60, 300, ScaleFormat.UE8M0X2_INT16)
    whole = torch.empty(70, 60)
    matmul_nt(a, b, whole, isa=isa, row_invariant=True)
    for start, stop in ((0, 1), (13, 17), (20, 69)):
        part = torch.empty(stop - start, 60)
        matmul_nt(a.rows(start, stop), b, part, isa=isa, row_invariant=True)
        assert_bitwise_equal(part, whole[start:stop])


def test_an_unknown_instruction_set_is_refused(make_operand):
    a = make_operand("bf16", 2, 32)
    with pytest.raises(ValueError, match="'mmx' is none of isa_variants"):
        matmul_nt(a, a, torch.empty(2, 2), isa="mmx")
