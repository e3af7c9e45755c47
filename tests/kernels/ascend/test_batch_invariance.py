"""Deterministic mode on Ascend: bits repeat, and a row of D depends on its own operands alone, whatever M, tiles and other rows.

Random values round at every step, so equal bits mean equal order of all additions.
"""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.programs.gemm_variant import GemmVariant

# N and K without and with a tail: in the second a tile ends behind N, and K inside a block, the other block of the pair missing.
SHAPES = [(96, 1984), (66, 1000)]
#: Formats, with tiles nobody would choose for the problems below; test_gemm.py lowers the same kernels.
TILES = {("fp8", "fp8"): (16, 16, 2048), ("fp8", "fp4"): (144, 80, 1024), ("fp4", "fp4"): (48, 176, 512)}
KINDS = list(TILES)
EXTREME = (0, 254, 255)  # the smallest and the largest exponent, NaN


@pytest.fixture(autouse=True)
def _deterministic(ascend):
    uk.use_deterministic_algorithms(True)


def scaled(kind, rows, k, generator):
    """Random data and random scales around 1, [rows, k]."""
    codes = torch.randint(120, 134, (rows, -(-k // 64) * 2), generator=generator, dtype=torch.uint8)
    codes[:, -(-k // 32) :] = 0  # a missing last block (contract 2.4)
    if kind == "fp8":
        return torch.randn(rows, k, generator=generator).to(torch.float8_e4m3fn), codes.view(torch.int16)
    return torch.randint(-128, 128, (rows, k // 2), generator=generator, dtype=torch.int8), codes.view(torch.int16)


def part(operand, first, last):
    return operand[0][first:last], operand[1][first:last]


def with_extreme_rows(operand, rows):
    """The operand with one scale of each of these rows out of the ordinary."""
    codes = operand[1].clone().view(torch.uint8)
    for row, code in zip(rows, EXTREME, strict=True):
        codes[row, 2] = code
    return operand[0], codes.view(torch.int16)


def test_bf16_rows_depend_on_themselves_alone(force_tiles, launched):
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(rows, 1000, generator=generator).bfloat16() for rows in (200, 33))
    whole, repeated = torch.empty(200, 33), torch.empty(200, 33)
    uk.set_num_sms(2)
    uk.bf16_gemm_nt(a, b, whole)
    uk.bf16_gemm_nt(a, b, repeated)
    assert torch.equal(whole, repeated)
    force_tiles(256, 256, 256)
    for first, last in ((0, 1), (7, 40), (0, 200)):
        part = torch.empty(last - first, 33)
        uk.bf16_gemm_nt(a[first:last], b, part)
        assert torch.equal(part, whole[first:last]), (first, last)
    first, second, *others = (kernel.variant.tiles for kernel in launched)
    assert first == second
    assert all(tiles.m > first.m and tiles.k < first.k for tiles in others)


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("kinds", KINDS)
def test_scaled_rows_depend_on_themselves_alone(force_tiles, launched, kinds, n, k):
    generator = torch.Generator().manual_seed(5)
    m = 203
    a, b = scaled(kinds[0], m, k, generator), scaled(kinds[1], n, k, generator)

    def multiply(a, b=b):
        d = torch.empty(len(a[0]), n)
        uk.fp8_fp4_gemm_nt(a, b, d, recipe=(1, 1, 32))
        return d

    whole = multiply(a)
    assert whole.isfinite().all()
    for first, last in ((0, m), (0, 1), (17, 60), (m - 1, m)):
        assert torch.equal(multiply(part(a, first, last)), whole[first:last]), (first, last)
    rows = [10, 90, 200]
    others = torch.ones(m, dtype=torch.bool)
    others[rows] = False
    changed = multiply(with_extreme_rows(a, rows))
    assert torch.equal(changed[others], whole[others])
    assert (changed[rows] != whole[rows]).any(1).all()
    columns = [0, 31, n - 1]
    others = torch.ones(n, dtype=torch.bool)
    others[columns] = False
    changed = multiply(a, with_extreme_rows(b, columns))
    assert torch.equal(changed[:, others], whole[:, others])
    force_tiles(*TILES[kinds])
    assert torch.equal(multiply(a), whole)
    gemms = [kernel.variant for kernel in launched if isinstance(kernel.variant, GemmVariant)]
    assert gemms[-1].tiles != gemms[0].tiles


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize(
    ("layout", "kinds"),
    [
        ("masked", KINDS[1]),
        ("masked", KINDS[2]),
        ("psum", KINDS[0]),
        ("psum", KINDS[1]),
        pytest.param("masked", KINDS[0], marks=pytest.mark.slow),  # each is a kernel of its own to lower
        pytest.param("psum", KINDS[2], marks=pytest.mark.slow),
    ],
)
def test_grouped_rows_depend_on_themselves_alone(layout, kinds, n, k):
    """Groups of 203 and 45 rows; then fewer, another number expected, and extreme scales in other rows and other groups."""
    generator = torch.Generator().manual_seed(6)
    pitch = 256  # rows from one group to the next; the alignment of psum
    a, weights = scaled(kinds[0], 2 * pitch, k, generator), [scaled(kinds[1], n, k, generator) for _ in range(2)]
    b = torch.stack([data for data, _ in weights]), torch.stack([scales for _, scales in weights])

    def multiply(sizes, a=a, b=b, expected_m=64):
        d = torch.zeros(2, pitch, n)
        if layout == "masked":
            counts = torch.tensor(sizes, dtype=torch.int32)
            groups = tuple(x.unflatten(0, (2, pitch)) for x in a)
            uk.m_grouped_fp8_fp4_gemm_nt_masked(groups, b, d, counts, expected_m, recipe=(1, 1, 32))
        else:
            ends = torch.tensor([sizes[0], pitch + sizes[1]], dtype=torch.int32)
            uk.m_grouped_fp8_fp4_gemm_nt_contiguous(
                a, b, d.flatten(0, 1), ends, recipe=(1, 1, 32), use_psum_layout=True
            )
        return [d[group, :size] for group, size in enumerate(sizes)]

    whole = multiply((203, 45))
    assert all(group.isfinite().all() for group in whole)
    for sizes, expected_m in (((203, 45), 1), ((1, 45), 203), ((60, 0), 64), ((203, 7), 64)):
        for group, rows in enumerate(multiply(sizes, expected_m=expected_m)):
            assert torch.equal(rows, whole[group][: len(rows)]), (sizes, group)
    extreme = [10, 90, 200]
    others = torch.ones(203, dtype=torch.bool)
    others[extreme] = False
    changed = multiply((203, 45), with_extreme_rows(a, extreme))
    assert torch.equal(changed[0][others], whole[0][others])
    assert (changed[0][extreme] != whole[0][extreme]).any(1).all()
    assert torch.equal(changed[1], whole[1])
    changed = multiply((203, 45), b=(b[0], torch.stack([with_extreme_rows(weights[0], (0, 31, n - 1))[1], b[1][1]])))
    assert torch.equal(changed[1], whole[1])
