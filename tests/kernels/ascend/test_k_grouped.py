"""GEMM grouped along K on Ascend: exact for every layout, form and addend; empty groups; scales of gaps do not matter."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.errors import UnsupportedOperationError

ALIGNMENT = 256
PLAIN, PSUM = (128, 0, 640, 0), (0, 100, 0, 258, 1)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def ranges_of(sizes, is_psum):
    """Start and end of every group along K, and the extent of all."""
    ranges, start = [], 0
    for size in sizes:
        ranges.append((start, start + size))
        start += -(-size // ALIGNMENT) * ALIGNMENT if is_psum else size
    return ranges, start


def operand(small_integers, quantised, kind, mn, sizes, is_psum, is_k_first, generator):
    """One operand as it is passed, zeros and (packed) NaN scales in gaps, and its float32 values [mn, sum_k]."""
    ranges, k = ranges_of(sizes, is_psum)
    values = small_integers(mn, k)
    is_gap = torch.ones(k, dtype=torch.bool)
    for start, end in ranges:
        is_gap[start:end] = False
    values[:, is_gap] = 0
    if kind == "bf16":
        return values.bfloat16().T.contiguous(), values
    data, words, scaled = quantised(values, kind, not is_k_first, generator)
    exponents = words.T.contiguous().view(torch.uint8).unflatten(1, (mn, 2))
    for block in range(k // 32):
        if is_gap[32 * block]:
            exponents[block // 2, :, block % 2] = 255
    words = exponents.flatten(1).view(torch.int16)
    return (data.T if is_k_first else data, words), scaled


@pytest.mark.parametrize(
    ("kinds", "form", "is_psum", "out", "addend"),
    [
        (("bf16", "bf16"), "tn", True, torch.float32, "other"),
        (("bf16", "bf16"), "tn", False, torch.bfloat16, None),
        (("fp8", "fp8"), "tn", True, torch.float32, "d"),
        (("fp8", "fp4"), "tn", False, torch.bfloat16, None),
        (("fp8", "fp8"), "nt", True, torch.bfloat16, None),
        (("fp4", "fp4"), "nt", True, torch.float32, "other"),
    ],
)
def test_groups_are_exact(ascend, small_integers, quantised, kinds, form, is_psum, out, addend):
    generator = torch.Generator().manual_seed(6)
    m, n, sizes = 70, 66, PSUM if is_psum else PLAIN
    a, a_values = operand(small_integers, quantised, kinds[0], m, sizes, is_psum, form == "tn", generator)
    b, b_values = operand(small_integers, quantised, kinds[1], n, sizes, is_psum, form == "tn", generator)
    ranges, _ = ranges_of(sizes, is_psum)
    expected = torch.stack([a_values[:, start:end] @ b_values[:, start:end].T for start, end in ranges])
    c = None if addend is None else small_integers(len(sizes) * m, n).view(expected.shape).to(out)
    d = torch.full(expected.shape, torch.nan, dtype=out) if addend != "d" else c
    if c is not None:
        expected = expected + c.float()
    layout = int32(*(end for _, end in ranges)) if is_psum else int32(*sizes)
    options = {} if kinds[0] == "bf16" else {"recipe": (1, 1, 32)}
    dtype = "fp8" if form == "tn" and kinds[0] != "bf16" else kinds[0]
    if dtype == "fp8" and form == "nt":
        a, b = (a[0], a[1].T), (b[0], b[1].T)
    function = getattr(uk, f"k_grouped_{dtype}_gemm_{form}_contiguous")
    function(a, b, d, None if is_psum else list(sizes), layout, c=c, use_psum_layout=is_psum, **options)
    assert torch.equal(d, expected.to(out))


def test_no_group_has_elements(ascend):
    """K consists of gaps only: every D is C, or zeros."""
    a, c = torch.zeros(256, 70).bfloat16(), torch.full((2, 70, 70), 3.0)
    for addend, expected in ((c, 3.0), (None, 0.0)):
        d = torch.full((2, 70, 70), torch.nan)
        uk.k_grouped_bf16_gemm_tn_contiguous(a, a, d, None, int32(0, 0), c=addend, use_psum_layout=True)
        assert (d == expected).all()


def test_alpha(ascend, small_integers):
    a, b = small_integers(256, 70).bfloat16(), small_integers(256, 66).bfloat16()
    d = torch.empty(2, 70, 66)
    uk.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [128, 128], int32(128, 128), epilogue=uk.epilogue.Alpha(-0.375))
    for group, rows in enumerate((slice(0, 128), slice(128, 256))):
        assert torch.equal(d[group], -0.375 * (a[rows].float().T @ b[rows].float()))


def test_unsupported_problems_say_why(ascend):
    a, sf = torch.ones(512, 4).to(torch.float8_e4m3fn), torch.ones(16, 4)
    a.view(torch.uint8)[100:256] = 0
    a.view(torch.uint8)[300:] = 0
    d = torch.full((2, 4, 4), 7.0)
    for row, fails in ((10, False), (9, True)):  # group 1 ends at K 300; row 10 scales K 320 on
        odd = sf.clone()
        odd[row] = 0.75
        call = ((a, odd), (a, sf), d, None, int32(100, 300))
        if fails:
            d.fill_(7)
            with pytest.raises(UnsupportedOperationError, match=r"scales of a hold other values.*use_ue8m0=True"):
                uk.k_grouped_fp8_gemm_tn_contiguous(*call, use_psum_layout=True, recipe=(1, 1, 32))
            assert (d == 7).all()
        else:
            uk.k_grouped_fp8_gemm_tn_contiguous(*call, use_psum_layout=True, recipe=(1, 1, 32))
            assert (d[0] == 100).all()
            assert (d[1] == 44).all()


def test_stochastic_rounding(ascend, small_integers):
    """Integers below 256 are bfloat16 values already, whatever is drawn; an empty group gives zeros."""
    a, b = small_integers(128, 70).sign().bfloat16(), small_integers(128, 66).sign().bfloat16()
    d = torch.full((2, 70, 66), torch.nan, dtype=torch.bfloat16)
    uk.k_grouped_bf16_gemm_tn_contiguous(
        a, b, d, [128, 0], int32(128, 0), epilogue=uk.epilogue.BF16StochasticRounding()
    )
    assert torch.equal(d[0].float(), a.float().T @ b.float())
    assert (d[1] == 0).all()
