"""Batches of GEMMs on Ascend: exact for every expression, stride and format; the sum over a batch; what is refused."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.errors import UnsupportedOperationError

FORMS = ("bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr")
SIZES = {"b": 37, "h": 3, "r": 200, "d": 66}


def padded(values, columns=6):
    """The same values with a wider row pitch; NaN in between."""
    wide = torch.full((*values.shape[:-1], values.shape[-1] + columns), torch.nan, dtype=values.dtype)
    wide[..., : values.shape[-1]] = values
    return wide[..., : values.shape[-1]]


def integers(small_integers, letters):
    shape = [SIZES[letter] for letter in letters]
    return small_integers(shape[0] * shape[1], shape[2]).view(shape)


@pytest.mark.parametrize("expr", FORMS)
def test_expressions_are_exact(ascend, small_integers, expr):
    (a, b), d = expr.split("->")[0].split(","), expr.split("->")[1]
    left, right, c = (integers(small_integers, letters) for letters in (a, b, d))
    product = torch.einsum(expr, left, right)
    frame = torch.full((*product.shape[:-1], product.shape[-1] + 9), 7.0, dtype=torch.bfloat16)
    out = frame[..., 4:-5]
    uk.einsum(expr, padded(left.bfloat16()), padded(right.bfloat16()), out)
    assert torch.equal(out, product.bfloat16())
    assert (frame[..., :4] == 7).all()
    assert (frame[..., -5:] == 7).all()
    total = c.clone()
    uk.einsum(expr, left.bfloat16(), right.bfloat16(), total, c=total, epilogue=uk.epilogue.Alpha(-0.375))
    assert torch.equal(total, c - 0.375 * product)


@pytest.mark.parametrize("expr", FORMS)
def test_scaled_expressions_are_exact(ascend, small_integers, quantised, expr):
    generator = torch.Generator().manual_seed(5)
    (a, b), d = expr.split("->")[0].split(","), expr.split("->")[1]
    summed = next(letter for letter in a if letter in b and letter not in d)
    operands, values = [], []
    for letters in (a, b):
        kept = next(letter for letter in letters if letter not in ("h", summed))
        heads = [
            quantised(small_integers(SIZES[kept], SIZES[summed]), "fp8", True, generator) for _ in range(SIZES["h"])
        ]
        order = [("h", kept, summed).index(letter) for letter in letters]
        data, words, floats = (torch.stack(parts).permute(order) for parts in zip(*heads, strict=True))
        operands.append((data.contiguous(), words))
        values.append(floats)
    out = torch.full([SIZES[letter] for letter in d], 7.0)
    uk.fp8_einsum(expr, *operands, out, recipe=(1, 1, 32))
    assert torch.equal(out, torch.einsum(expr, *values))


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_sum_over_the_batch_is_exact(ascend, small_integers, out):
    for s, m, n, k in ((3, 64, 128, 320), (5, 33, 70, 64), (1, 1, 1, 1)):
        a, b, d = (small_integers(s * m, k), small_integers(s * n, k), small_integers(m, n).to(out))
        a, b, before = a.view(s, m, k), b.view(s, n, k), d.clone()
        uk.einsum("bmk,bnk->mn", a.bfloat16(), b.bfloat16(), d, c=d if out is torch.float32 else None)
        expected = torch.einsum("bmk,bnk->mn", a, b)
        assert torch.equal(d, expected + before if out is torch.float32 else expected.bfloat16()), (s, m, n, k)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_symmetric_products_are_exact(ascend, small_integers, dtype):
    a = small_integers(3 * 70, 150).view(3, 70, 150)
    d = torch.empty(3, 70, 70, dtype=dtype)
    uk.batched_syrk(padded(a.to(dtype)), d)
    assert torch.equal(d, (a @ a.mT).to(dtype))
    square = a[..., :70] + a[..., :70].mT
    d = torch.empty(3, 70, 150, dtype=dtype)
    uk.batched_symm(square.to(dtype), a.to(dtype), d)
    assert torch.equal(d, (square @ a).to(dtype))


def test_unsupported_problems_say_why(ascend):
    a = (torch.ones(4, 2, 128).to(torch.float8_e4m3fn), torch.ones(4, 2, 4))
    b = (torch.ones(2, 128, 128).to(torch.float8_e4m3fn), torch.full((2, 128, 4), 0.75))
    d = torch.full((4, 2, 128), 7.0)
    with pytest.raises(UnsupportedOperationError, match=r"scales of b hold other values.*use_ue8m0=True"):
        uk.fp8_einsum("bhr,hdr->bhd", a, b, d, recipe=(1, 1, 32))
    assert (d == 7).all()
