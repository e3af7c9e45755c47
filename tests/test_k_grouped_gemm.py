"""GEMMs grouped along K: faults users met, every rule about sizes, and the forms of scales that must give equal results."""

from __future__ import annotations

import inspect

import pytest
import torch

import unikernels as uk
from unikernels.epilogue import Alpha, BF16StochasticRounding, FP8CastWithClamp
from unikernels.errors import ArgumentTypeError, InvalidArgumentError
from unikernels.scale_layouts import ScaleFormat, Scales, convert_scales

FP8 = torch.float8_e4m3fn


@pytest.fixture(params=["cpu", "reference"], autouse=True)
def _backend(request):
    with uk.use_backend(request.param):
        yield


def int32(values):
    return torch.tensor(list(values), dtype=torch.int32)


def bf16_ones(k, m):
    return torch.ones(k, m).bfloat16()


def test_empty_group_gives_c():
    ks = [128, 0, 128]
    full = torch.empty(3, 128, 128)
    uk.k_grouped_bf16_gemm_tn_contiguous(bf16_ones(384, 128), bf16_ones(384, 128), full, [128] * 3, int32([128] * 3))
    del full
    c = torch.full((3, 128, 128), 5.0)
    d = torch.full((3, 128, 128), torch.nan)
    a = bf16_ones(256, 128)
    uk.k_grouped_bf16_gemm_tn_contiguous(a, a, d, ks, int32(ks), c)
    assert torch.equal(d[:, 0, 0], torch.tensor([133.0, 5.0, 133.0]))
    assert torch.equal(d, d[:, :1, :1].expand_as(d))
    assert (c == 5).all()
    d.fill_(torch.nan)
    uk.k_grouped_bf16_gemm_tn_contiguous(a, a, d, ks, int32(ks))
    assert torch.equal(d[:, 0, 0], torch.tensor([128.0, 0.0, 128.0]))


@pytest.mark.parametrize("quantised", [False, True])
def test_all_groups_empty(quantised):
    shape, ks = (2, 4, 8), [0, 0]
    for c, expected in ((torch.full(shape, 5.0), 5.0), (None, 0.0)):
        d = torch.full(shape, torch.nan)
        if quantised:
            a = (torch.empty(0, 4, dtype=FP8), torch.empty(0, 4))
            b = (torch.empty(0, 8, dtype=FP8), torch.empty(0, 8))
            uk.k_grouped_fp8_gemm_tn_contiguous(a, b, d, ks, int32(ks), c)
        else:
            uk.k_grouped_bf16_gemm_tn_contiguous(bf16_ones(0, 4), bf16_ones(0, 8), d, ks, int32(ks), c)
        assert (d == expected).all()
    d = torch.full(shape, 3.0)
    uk.k_grouped_bf16_gemm_tn_contiguous(bf16_ones(0, 4), bf16_ones(0, 8), d, ks, int32(ks), d)
    assert (d == 3).all()


def test_all_groups_of_a_flat_buffer_empty():
    a, b = (torch.empty(0, dtype=FP8), torch.empty(4, 0)), (torch.empty(0, dtype=FP8), torch.empty(8, 0))
    d, c = torch.full((2, 4, 8), torch.nan), torch.full((2, 4, 8), 5.0)
    uk.k_grouped_fp8_gemm_nt_contiguous(a, b, d, [0, 0], int32([0, 0]), c)
    assert (d == 5).all()


def test_odd_number_of_tiles():
    generator = torch.Generator().manual_seed(0)
    ks, m, n = [384, 256], 192, 200
    a = torch.randint(-3, 4, (640, m), generator=generator).bfloat16()
    b = torch.randint(-3, 4, (640, n), generator=generator).bfloat16()
    d = torch.empty(2, m, n)
    uk.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks, int32(ks))
    assert torch.equal(d[0].double(), a[:384].double().T @ b[:384].double())
    assert torch.equal(d[1].double(), a[384:].double().T @ b[384:].double())


def test_sizes_beyond_int32_are_only_counted():
    ks, m, n = [131072, 131072], 8192, 128
    a = torch.empty(262144, m, dtype=torch.bfloat16, device="meta")
    b = torch.empty(262144, n, dtype=torch.bfloat16, device="meta")
    d = torch.empty(2, m, n, device="meta")
    layout = torch.empty(2, dtype=torch.int32, device="meta")
    uk.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks, layout)
    with pytest.raises(InvalidArgumentError, match="a has 262143 elements along K, expected 262144"):
        uk.k_grouped_bf16_gemm_tn_contiguous(a[:-1], b[:-1], d, ks, layout)
    with pytest.raises(InvalidArgumentError, match=r"a has k=262144 .*b has k=262143"):
        uk.k_grouped_bf16_gemm_tn_contiguous(a, b[:-1], d, ks, layout)


def test_end_offsets_with_any_size():
    uk.set_mk_alignment_for_contiguous_layout(256)
    ends = int32([100, 256, 257 + 256])  # sizes 100, 0, 1 + 256 after gaps: starts 0, 256, 256
    a = torch.zeros(768, 3).bfloat16()
    a[:100], a[256:513] = 1, 2
    for ks in ([256, 0, 512], [100, 0, 257], None, []):
        d = torch.full((3, 3, 3), torch.nan)
        uk.k_grouped_bf16_gemm_tn_contiguous(a, a, d, ks, ends, use_psum_layout=True)
        assert d[:, 0, 0].tolist() == [100.0, 0.0, 257 * 4.0]


def test_gaps_are_not_read_on_the_cpu():
    a = torch.full((256, 3), torch.nan).bfloat16()
    a[:100], a[128:138] = 1, 1
    d = torch.empty(2, 3, 3)
    uk.k_grouped_bf16_gemm_tn_contiguous(a, a, d, None, int32([100, 138]), use_psum_layout=True)
    assert d[:, 0, 0].tolist() == [100.0, 10.0]


class TestForms:
    """One product through every form of data and scales."""

    M, N, SIZES, ALIGNMENT = 36, 64, (100, 0, 258, 64), 256

    def ranges(self):
        start = 0
        for size in self.SIZES:
            yield start, start + size
            start += -(-size // self.ALIGNMENT) * self.ALIGNMENT

    def build(self, kind="fp8", gran_k=32):
        generator = torch.Generator().manual_seed(3)
        k = 256 + 512 + 256
        operands = []
        for mn in (self.M, self.N):
            x = torch.randn(mn, k, generator=generator) * torch.exp2(torch.randint(-4, 5, (mn, k), generator=generator))
            gaps = torch.ones(k, dtype=torch.bool)
            for start, end in self.ranges():
                gaps[start:end] = False
            x[:, gaps] = 0
            cast = uk.per_token_cast_to_fp8 if kind == "fp8" else uk.per_token_cast_to_fp4
            operands.append(cast(x, True, gran_k))
        return operands

    def call(self, function, operands, ks=None, **options):
        uk.set_mk_alignment_for_contiguous_layout(self.ALIGNMENT)
        d = torch.full((len(self.SIZES), self.M, self.N), torch.nan)
        ends = int32(end for _, end in self.ranges())
        getattr(uk, function)(*operands, d, ks, ends, use_psum_layout=True, **options)
        return d

    def expected(self, operands, gran_k=32):
        a, b = (data.double() * sf.double().repeat_interleave(gran_k, 1)[:, : data.shape[1]] for data, sf in operands)
        return torch.stack([a[:, start:end] @ b[:, start:end].T for start, end in self.ranges()])

    def packed(self, sf, scale_format, gran_k=32):
        scales = Scales(sf, ScaleFormat.FP32, 1, gran_k, sf.shape[0], sf.shape[1] * gran_k)
        return convert_scales(scales, scale_format, gran_k=gran_k).data.T

    def compact(self, sf, gran_k):
        return torch.cat([sf[:, start // gran_k : -(-end // gran_k)] for start, end in self.ranges()], 1).T.contiguous()

    def tn(self, operands, transform):
        return [(data.view(torch.uint8).T.contiguous().view(FP8), transform(sf)) for data, sf in operands]

    @pytest.mark.parametrize("form", ["float32", "compact", "int32", "int32 spare rows", "int16", "bytes"])
    def test_scales_32(self, form):
        operands = self.build()
        transform = {
            "float32": lambda sf: sf.T.contiguous(),
            "compact": lambda sf: self.compact(sf, 32),
            "int32": lambda sf: self.packed(sf, ScaleFormat.UE8M0X4_INT32),
            "int32 spare rows": lambda sf: torch.cat(
                [self.packed(sf, ScaleFormat.UE8M0X4_INT32), int32([0] * len(sf)).view(1, -1)]
            ),
            "int16": lambda sf: self.packed(sf, ScaleFormat.UE8M0X2_INT16),
            "bytes": lambda sf: (sf.view(torch.int32) >> 23).to(torch.uint8).T.contiguous(),
        }[form]
        d = self.call("k_grouped_fp8_gemm_tn_contiguous", self.tn(operands, transform), recipe=(1, 1, 32))
        expected = self.expected(operands)
        assert uk.testing.calc_diff(d, expected) < 1e-12
        assert (d[1] == 0).all()

    def test_int16_scales_say_the_recipe(self):
        operands = self.build()
        d = self.call(
            "k_grouped_fp8_gemm_tn_contiguous", self.tn(operands, lambda sf: self.packed(sf, ScaleFormat.UE8M0X2_INT16))
        )
        assert uk.testing.calc_diff(d, self.expected(operands)) < 1e-12

    @pytest.mark.parametrize("form", ["float32", "compact", "words per group"])
    def test_scales_128(self, form):
        operands = self.build(gran_k=128)

        def words_per_group(sf):
            rows = []
            for start, end in self.ranges():
                exponents = (sf[:, start // 128 : -(-end // 256) * 2].contiguous().view(torch.int32) >> 23).T
                for first in range(0, len(exponents), 4):
                    rows.append(sum(row << (8 * place) for place, row in enumerate(exponents[first : first + 4])))
            return torch.stack(rows).int()

        transform = {"float32": lambda sf: sf.T.contiguous(), "compact": lambda sf: self.compact(sf, 128)}
        d = self.call("k_grouped_fp8_gemm_tn_contiguous", self.tn(operands, transform.get(form, words_per_group)))
        assert uk.testing.calc_diff(d, self.expected(operands, 128)) < 1e-12

    def test_compact_rows_are_recognised_by_real_sizes(self):
        operands = self.build()
        d = self.call(
            "k_grouped_fp8_gemm_tn_contiguous", self.tn(operands, lambda sf: self.compact(sf, 32)),
            ks=list(self.SIZES), recipe=(1, 1, 32),
        )  # fmt: skip
        assert uk.testing.calc_diff(d, self.expected(operands)) < 1e-12

    def test_wrong_rows_are_named(self):
        operands = self.tn(self.build(), lambda sf: sf.T.contiguous()[:-1])
        with pytest.raises(InvalidArgumentError, match=r"sfa has 31 rows .*expected 32, or \d+ without rows for gaps"):
            self.call("k_grouped_fp8_gemm_tn_contiguous", operands, recipe=(1, 1, 32))
        operands = self.tn(self.build(), lambda sf: sf)
        with pytest.raises(InvalidArgumentError, match=r"sfa has shape .*passed K first"):
            self.call("k_grouped_fp8_gemm_tn_contiguous", operands, recipe=(1, 1, 32))

    def test_matrices_with_k_last(self):
        operands = self.build()
        d = self.call("k_grouped_fp8_gemm_nt_contiguous", operands, recipe=(1, 1, 32))
        assert uk.testing.calc_diff(d, self.expected(operands)) < 1e-12

    def test_fp4_equals_its_fp8_encoding(self):
        fp4 = self.build("fp4")
        fp8 = [(decoded(data).to(FP8), sf) for data, sf in fp4]
        d = self.call("k_grouped_fp4_gemm_nt_contiguous", [(data, sf.T.contiguous()) for data, sf in fp4])
        again = self.call(
            "k_grouped_fp8_gemm_tn_contiguous", self.tn(fp8, lambda sf: sf.T.contiguous()), recipe=(1, 1, 32)
        )
        assert uk.testing.calc_diff(d, again) < 1e-14
        assert uk.testing.calc_diff(d, self.expected(fp8)) < 1e-12

    def test_flat_blocks(self):
        ks, m, n = [128, 0, 256], 5, 9
        generator = torch.Generator().manual_seed(4)
        a = torch.randint(-3, 4, (m, 384), generator=generator).float()
        b = torch.randint(-3, 4, (n, 384), generator=generator).float()
        sfa, sfb = torch.full((m, 3), 2.0), torch.ones(n, 3)
        ranges = [(0, 128), (128, 128), (128, 384)]
        flat = [torch.cat([x[:, s:e].flatten() for s, e in ranges]).to(FP8) for x in (a, b)]
        c = torch.full((3, m, n), 10.0)
        expected = torch.stack([10 + 2 * a[:, s:e] @ b[:, s:e].T for s, e in ranges])
        for shaped in (flat, [flat[0].view(384, m), flat[1].view(384, n)]):
            d = torch.empty(3, m, n)
            uk.k_grouped_fp8_gemm_nt_contiguous((shaped[0], sfa), (shaped[1], sfb), d, ks, int32(ks), c)
            assert torch.equal(d, expected)
        with pytest.raises(InvalidArgumentError, match=f"a has {384 * m - 1} elements .*expected {384 * m}"):
            uk.k_grouped_fp8_gemm_nt_contiguous((flat[0][:-1], sfa), (flat[1], sfb), d, ks, int32(ks), c)
        with pytest.raises(InvalidArgumentError, match="ks_cpu is missing"):
            uk.k_grouped_fp8_gemm_nt_contiguous(
                (flat[0], sfa), (flat[1], sfb), d, None, int32(ks), c, use_psum_layout=True
            )


def decoded(packed):
    """Return the values of FP4 data packed along the last dimension."""
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    codes = packed.view(torch.uint8).long()
    return torch.tensor(magnitudes + [-value for value in magnitudes])[
        torch.stack([codes & 15, codes >> 4], -1).flatten(1)
    ]


class TestArguments:
    def call(self, ks, layout, k=256, function="k_grouped_bf16_gemm_tn_contiguous", d=None, **options):
        d = torch.full((2, 4, 8), 7.0) if d is None else d
        getattr(uk, function)(bf16_ones(k, 4), bf16_ones(k, 8), d, ks, layout, **options)
        return d

    @pytest.mark.parametrize(
        ("ks", "layout", "options", "text"),
        [
            ([128, 64], [128, 64], {}, r"ks_cpu\[1\] is 64, expected a multiple of 128"),
            ([128], [128, 128], {}, "ks_cpu has 1 sizes, expected 2"),
            ([128, 256], [128, 256], {}, "a has 256 elements along K, expected 384"),
            ([128, 128], [128, 256], {}, r"grouped_layout holds \[128, 256\] but ks_cpu is \[128, 128\]"),
            ([128, 128], [256], {}, r"grouped_layout has shape \(1,\), expected \(2,\)"),
            (None, [128, 128], {}, "ks_cpu is missing"),
            ([], [128, 128], {}, "ks_cpu is missing"),
            ([128, -128], [128, 128], {}, r"ks_cpu\[1\] is -128"),
            ([128, 1.5], [128, 128], {}, r"ks_cpu\[1\] is 1.5"),
            (int32([128, 128]), [128, 128], {}, "ks_cpu is a tensor"),
            (256, [128, 128], {}, "ks_cpu is 256"),
            (None, [200, 100], {"use_psum_layout": True}, r"grouped_layout\[1\] is 100 .*at least 200"),
            (None, [100, 300], {"use_psum_layout": True}, "ends at 300 .*256 elements along K"),
            ([128, 129], [100, 200], {"use_psum_layout": True}, "a has 256 elements along K, expected 384"),
            ([128, 128], [128, 128], {"epilogue": BF16StochasticRounding()}, "expected bfloat16"),
        ],
    )
    def test_refusals(self, ks, layout, options, text):
        d = torch.full((2, 4, 8), 7.0)
        with pytest.raises(InvalidArgumentError, match=text):
            self.call(ks, int32(layout), d=d, **options)
        assert (d == 7).all()

    def test_alignment_must_hold_whole_words(self):
        uk.set_mk_alignment_for_contiguous_layout(64)
        with pytest.raises(InvalidArgumentError, match="alignment in force is 64, expected a multiple of 128"):
            self.call(None, int32([128, 256]), use_psum_layout=True)

    def test_operands_are_contiguous(self):
        wide = bf16_ones(256, 8)
        with pytest.raises(InvalidArgumentError, match=r"a has strides \(8, 1\), expected a contiguous"):
            uk.k_grouped_bf16_gemm_tn_contiguous(wide[:, :4], wide, torch.empty(1, 4, 8), [256], int32([256]))
        with pytest.raises(InvalidArgumentError, match="d has strides"):
            uk.k_grouped_bf16_gemm_tn_contiguous(wide, wide, torch.empty(1, 8, 16)[..., :8], [256], int32([256]))

    def test_fp8_output_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="not offered by grouped GEMMs"):
            self.call([256, 0], int32([256, 0]), epilogue=FP8CastWithClamp(torch.empty(4, 1, dtype=torch.int32)))

    def test_recipe(self):
        a = (torch.ones(128, 4).to(FP8), torch.ones(1, 4))
        for recipe in ((1, 128, 128), (1, 1, 64), 128):
            with pytest.raises(InvalidArgumentError, match=r"recipe is .*expected"):
                uk.k_grouped_fp8_gemm_tn_contiguous(a, a, torch.empty(1, 4, 4), [128], int32([128]), recipe=recipe)
        fp4 = (torch.zeros(4, 64, dtype=torch.int8), torch.ones(4, 4))
        with pytest.raises(InvalidArgumentError, match=r"expected \(1, 1, 32\)"):
            uk.k_grouped_fp4_gemm_nt_contiguous(fp4, fp4, torch.empty(1, 4, 4), [128], int32([128]), recipe=(1, 1, 128))

    def test_ks_is_another_name(self):
        d = torch.empty(1, 4, 4)
        a = bf16_ones(128, 4)
        uk.k_grouped_bf16_gemm_tn_contiguous(a, a, d, ks=[128], grouped_layout=int32([128]))
        assert (d == 128).all()
        with pytest.raises(ArgumentTypeError, match="ks_cpu or ks"):
            uk.k_grouped_bf16_gemm_tn_contiguous(a, a, d, [128], int32([128]), ks=[128])
        assert list(inspect.signature(uk.k_grouped_bf16_gemm_tn_contiguous).parameters)[3] == "ks_cpu"

    def test_positional_c_that_is_d_accumulates(self):
        d = torch.full((1, 4, 4), 2.0)
        a = bf16_ones(128, 4)
        uk.k_grouped_bf16_gemm_tn_contiguous(a, a, d, [128], int32([128]), d, epilogue=Alpha(0.5))
        assert (d == 66).all()
        out = torch.full((1, 4, 4), 2.0, dtype=torch.bfloat16)
        uk.k_grouped_bf16_gemm_tn_contiguous(a, a, out, [128], int32([128]), epilogue=BF16StochasticRounding())
        assert (out == 128).all()
