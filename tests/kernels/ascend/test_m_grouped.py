"""GEMM grouped along M on Ascend: exact for every layout and format, whatever padding holds; empty groups, untouched rows."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.errors import InvalidArgumentError, UnsupportedOperationError

ALIGNMENT = 256
SIZES = (0, 1, 100, 257, 0, 300)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def starts_of(sizes):
    starts, start = [], 0
    for size in sizes:
        starts.append(start)
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return [*starts, start]


class Problem:
    """Groups of the given sizes: operands of small integers, the exact product, and which rows of D belong to a group."""

    def __init__(self, small_integers, quantised, layout, kinds, sizes, n, k, b_layout="nt"):
        generator = torch.Generator().manual_seed(4)
        self.layout, self.kinds, self.b_layout = layout, kinds, b_layout
        *starts, m = starts_of(sizes)
        if layout == "masked":
            max_m = max(*sizes, 1) + 5
            starts, m = [group * max_m for group in range(len(sizes))], len(sizes) * max_m
        self.valid = torch.zeros(m, dtype=torch.bool)
        labels = torch.full((m,), -1, dtype=torch.int32)
        for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            self.valid[start : start + size], labels[start : start + size] = True, group
        left, right = small_integers(m, k), [small_integers(n, k) for _ in sizes]
        if kinds[0] == "bf16":
            a, b = left.bfloat16(), torch.stack([one.bfloat16() for one in right])
            a_values, b_values = left, torch.stack(right)
            b = b if b_layout == "nt" else b.mT.contiguous().mT
        else:
            a, sfa, a_values = quantised(left, kinds[0], True, generator)
            parts = [quantised(one, kinds[1], b_layout == "nt", generator) for one in right]
            b = torch.stack([data if b_layout == "nt" else data.mT for data, _, _ in parts])
            b = b if b_layout == "nt" else b.mT
            sfb = torch.stack([words.mT for _, words, _ in parts]).mT
            b_values = torch.stack([values for _, _, values in parts])
            sfa[~self.valid] = -1  # NaN exponents
        a.view(torch.uint8)[~self.valid] = 0xFF  # NaN
        self.product = torch.einsum("mk,mnk->mn", a_values, b_values[labels.clamp(min=0).long()])
        self.tensor = labels if layout == "index" else int32(*(s + n for s, n in zip(starts, sizes, strict=True)))
        if layout == "masked":
            self.tensor = int32(*sizes)
            a = a.unflatten(0, (len(sizes), -1))
            if kinds[0] != "bf16":
                sfa = sfa.unflatten(0, (len(sizes), -1)).mT.contiguous().mT
        self.a, self.b = (a, b) if kinds[0] == "bf16" else ((a, sfa), (b, sfb))

    def run(self, d, **options):
        dtype = "bf16" if self.kinds[0] == "bf16" else "fp8_fp4"
        options |= {} if dtype == "bf16" else {"recipe": (1, 1, 32)}
        b = self.b
        if self.b_layout == "nn":
            b = b.mT if dtype == "bf16" else (b[0].mT, b[1].mT)
        if self.layout == "masked":
            d = d.unflatten(0, (len(self.tensor), -1))
            getattr(uk, f"m_grouped_{dtype}_gemm_nt_masked")(self.a, b, d, self.tensor, 64, **options)
            return
        function = getattr(uk, f"m_grouped_{dtype}_gemm_{self.b_layout}_contiguous")
        function(self.a, b, d, self.tensor, use_psum_layout=self.layout == "psum", **options)


@pytest.mark.parametrize(
    ("layout", "kinds", "b_layout", "out"),
    [
        ("index", ("bf16", "bf16"), "nn", torch.float32),
        ("index", ("fp4", "fp4"), "nt", torch.bfloat16),
        ("index", ("fp8", "fp4"), "nt", torch.bfloat16),
        ("psum", ("fp8", "fp8"), "nt", torch.bfloat16),
        ("psum", ("fp8", "fp4"), "nn", torch.float32),
        ("masked", ("bf16", "bf16"), "nt", torch.bfloat16),
        ("masked", ("fp4", "fp8"), "nt", torch.bfloat16),
    ],
)
def test_groups_are_exact(ascend, small_integers, quantised, layout, kinds, b_layout, out):
    problem = Problem(small_integers, quantised, layout, kinds, SIZES, 66, 232, b_layout)
    d = torch.full(problem.product.shape, 7.0, dtype=out)
    problem.run(d)
    assert torch.equal(d[problem.valid], problem.product.to(out)[problem.valid])
    if layout == "psum":
        assert (d[~problem.valid] == 0).all()  # although A holds NaN there
    if layout == "masked":
        assert (d[~problem.valid] == 7).all()


def test_alpha(ascend, small_integers, quantised):
    problem = Problem(small_integers, quantised, "psum", ("bf16", "bf16"), (3, 0, 40), 66, 64)
    d = torch.empty(problem.product.shape)
    problem.run(d, epilogue=uk.epilogue.Alpha(-0.375))
    assert torch.equal(d[problem.valid], -0.375 * problem.product[problem.valid])


def test_rows_after_the_last_group_keep_their_content(ascend, small_integers):
    a, b = small_integers(600, 64).bfloat16(), small_integers(66, 64).bfloat16().expand(2, 66, 64)
    product = a.float() @ b[0].float().T
    for ends in (int32(3, 300), int32(0, 0), int32(0, 3)):
        frame = torch.full((600, 70), 7.0, dtype=torch.bfloat16)
        uk.m_grouped_bf16_gemm_nt_contiguous(a, b, frame[:, 2:68], ends, use_psum_layout=True)
        expected = torch.full((600, 66), 7.0)
        for start, end in ((0, int(ends[0])), (256 if ends[0] else 0, int(ends[1]))):
            expected[start : -(-end // 256) * 256] = 0
            expected[start:end] = product[start:end]
        assert torch.equal(frame[:, 2:68], expected.bfloat16())
        assert (frame[:, :2] == 7).all()
        assert (frame[:, 68:] == 7).all()
    frame.fill_(7)
    uk.m_grouped_bf16_gemm_nt_contiguous(
        a, b, frame[:, 2:68], int32(3, 300), use_psum_layout=True, ensure_zero_padding=False
    )
    assert (frame[3:256] == 7).all()  # stores end where groups do
    assert (frame[300:] == 7).all()


def test_padding_may_stand_between_the_rows_of_a_group(ascend, small_integers):
    a, b = small_integers(300, 64).bfloat16(), torch.stack([small_integers(66, 64) for _ in range(2)]).bfloat16()
    labels = int32(*[-1] * 300)
    labels[0], labels[200], labels[256:260] = 1, 1, 0
    d = torch.empty(300, 66)
    uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, labels)
    for row in (0, 200, 256, 259):
        assert torch.equal(d[row], a[row].float() @ b[labels[row]].float().T)


def test_nothing_to_do(ascend):
    a, b = torch.ones(2, 4, 64).bfloat16(), torch.ones(2, 66, 64).bfloat16()
    d = torch.full((2, 4, 66), 7.0)
    uk.m_grouped_bf16_gemm_nt_masked(a, b, d, int32(0, 0), 0)
    uk.m_grouped_bf16_gemm_nt_contiguous(a[0], b, d[0], int32(-1, -1, -1, -1))
    assert (d == 7).all()


def test_new_sizes_in_the_same_tensor_launch_the_same_kernels(ascend, launched):
    """The layout is read on the device: which kernels run does not depend on what it holds."""
    a, b, counts = torch.ones(2, 4, 64).bfloat16(), torch.ones(2, 66, 64).bfloat16(), int32(4, 0)
    launches = []
    for first, second in ((4, 0), (0, 3), (0, 0)):
        counts.copy_(int32(first, second))
        d = torch.full((2, 4, 66), 7.0)
        uk.m_grouped_bf16_gemm_nt_masked(a, b, d, counts, 4)
        assert (d[0, :first] == 64).all()
        assert (d[1, :second] == 64).all()
        launches.append(list(launched))
        launched.clear()
    assert launches[0] == launches[1] == launches[2] != []


def test_unsupported_problems_say_why(ascend):
    a, sf = torch.ones(4, 64).to(torch.float8_e4m3fn), torch.ones(4, 2)
    d = torch.full((4, 4), 7.0)
    for row, fails in ((3, False), (1, True)):
        odd = sf.clone()
        odd[row] = 0.75  # row 3 belongs to no group
        call = ((a, odd), (a[None], sf[None]), d, int32(0, 0, 0, -1))
        if fails:
            d.fill_(7)
            with pytest.raises(UnsupportedOperationError, match=r"scales of a hold other values.*use_ue8m0=True"):
                uk.m_grouped_fp8_gemm_nt_contiguous(*call, recipe=(1, 1, 32))
            assert (d == 7).all()
        else:
            uk.m_grouped_fp8_gemm_nt_contiguous(*call, recipe=(1, 1, 32))
            assert (d[:3] == 64).all()


def test_groups_that_start_inside_a_block_are_refused(ascend):
    ones, d = torch.ones(300, 64).bfloat16(), torch.full((300, 66), 7.0)
    labels = int32(*[0] * 100, *[1] * 200)
    with pytest.raises(InvalidArgumentError, match=r"grouped_layout\[100\] is 1 .*alignment in force is 256"):
        uk.m_grouped_bf16_gemm_nt_contiguous(ones, torch.ones(2, 66, 64).bfloat16(), d, labels)
    assert (d == 7).all()
