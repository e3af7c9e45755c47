"""Vendor baselines (cublaslt, aclnn, syrk, symm, NVFP4), the GEMM with room between heads, and the legacy GEMMs."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import legacy
from unikernels.errors import ArgumentTypeError, InvalidArgumentError

FP8 = torch.float8_e4m3fn
LAYOUTS = ["nt", "nn", "tn", "tt"]


@pytest.fixture(params=["cpu", "reference"], autouse=True)
def _backend(request):
    with uk.use_backend(request.param):
        yield


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def integers(*shape, seed=0, limit=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-limit, limit + 1, shape, generator=generator).double()


@pytest.fixture
def problems(monkeypatch):
    """Collect the problems a backend receives."""
    from unikernels import _registry

    seen = []
    name = _registry.selected()
    for operation in ("gemm", "batched_gemm"):
        method = getattr(_registry.backend(name), operation)
        monkeypatch.setattr(
            _registry.backend(name),
            operation,
            lambda problem, method=method: (seen.append(problem), method(problem))[1],
            raising=False,
        )
    monkeypatch.setattr(_registry, "_bound", {})
    return seen


class TestVendorLibrary:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_bf16(self, layout, problems):
        a, b = integers(33, 64), integers(20, 64, seed=1)
        passed_a = (a.T if layout[0] == "t" else a).bfloat16().contiguous()
        passed_b = (b.T if layout[1] == "n" else b).bfloat16().contiguous()
        for name in (f"aclnn_bf16_gemm_{layout}", f"cublaslt_gemm_{layout}"):
            d = torch.full((33, 20), 2.0)
            getattr(uk, name)(passed_a, passed_b, d, d)
            assert torch.equal(d.double(), a @ b.T + 2)
        assert [problem.uses_vendor_library for problem in problems] == [True, True]
        getattr(uk, f"bf16_gemm_{layout}")(passed_a, passed_b, torch.empty(33, 20))
        assert not problems[-1].uses_vendor_library

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("scales", ["float32", "bytes"])
    def test_fp8(self, layout, scales, problems):
        a, b = integers(16, 64), integers(24, 64, seed=1)
        sfa = torch.exp2(integers(16, 2, seed=2)).float()
        sfb = torch.exp2(integers(24, 2, seed=3)).float()
        passed = []
        for x, sf, is_transposed in ((a, sfa, layout[0] == "t"), (b, sfb, layout[1] == "n")):
            data = x.to(FP8)
            sf = (sf.view(torch.int32) >> 23).to(torch.uint8) if scales == "bytes" else sf
            passed.append((data.view(torch.uint8).T.contiguous().view(FP8), sf.T) if is_transposed else (data, sf))
        d = torch.empty(16, 24)
        c = torch.ones(16, 24)
        getattr(uk, f"aclnn_fp8_fp4_gemm_{layout}")(*passed, d, c)
        expected = (a * sfa.double().repeat_interleave(32, 1)) @ (b * sfb.double().repeat_interleave(32, 1)).T + 1
        assert uk.testing.calc_diff(d, expected) < 1e-12
        assert problems[0].uses_vendor_library

    def test_aclnn_restrictions(self):
        def fp8(mn, k, k_major=True):
            data = torch.ones(mn, k).to(FP8)
            return (data if k_major else data.view(torch.uint8).T.contiguous().T.view(FP8)), torch.ones(mn, -(-k // 32))

        fp4 = (torch.zeros(24, 32, dtype=torch.int8), torch.ones(24, 2))
        d, low = torch.empty(16, 24), torch.empty(16, 24, dtype=torch.bfloat16)
        call = uk.aclnn_fp8_fp4_gemm_nt
        call(fp8(16, 64), fp4, low)
        with pytest.raises(InvalidArgumentError, match="k is 96, expected a multiple of 64"):
            call(fp8(16, 96), fp8(24, 96), d)
        with pytest.raises(InvalidArgumentError, match="a is FP4 and b FP8"):
            call((torch.zeros(16, 32, dtype=torch.int8), torch.ones(16, 2)), fp8(24, 64), d)
        with pytest.raises(InvalidArgumentError, match="needs a bfloat16 d"):
            call(fp8(16, 64), fp4, d)
        with pytest.raises(InvalidArgumentError, match="unit stride along K for both"):
            call(fp8(16, 64, False), fp4, low)
        with pytest.raises(InvalidArgumentError, match=r"recipe is not \(1, 1, 32\)"):
            call(fp8(16, 64), fp8(24, 64), d, recipe=(1, 128, 128))
        with pytest.raises(InvalidArgumentError, match=r"sfa has dtype torch.int16.*no packed words"):
            call((fp8(16, 64)[0], torch.ones(16, 1, dtype=torch.int16)), fp8(24, 64), d)
        with pytest.raises(InvalidArgumentError, match="c is another tensor than d"):
            uk.aclnn_bf16_gemm_nt(
                torch.ones(4, 8).bfloat16(), torch.ones(4, 8).bfloat16(), torch.empty(4, 4), torch.ones(4, 4)
            )


class TestNvfp4:
    def operand(self, mn, k, seed):
        """Values and the pair that encodes them: codes in order, scales in their tiles by the formula of the contract."""
        generator = torch.Generator().manual_seed(seed)
        codes = torch.randint(0, 16, (mn, k), generator=generator)
        magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
        values = magnitudes[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
        scale_bytes = torch.randint(1, 0x7F, (mn, k // 16), generator=generator)
        sf = torch.full((-(-mn // 128) * -(-k // 64) * 512,), 0x7F, dtype=torch.uint8)
        for row in range(mn):
            for j in range(k // 16):
                place = ((row // 128) * -(-k // 64) + j // 4) * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + j % 4
                sf[place] = scale_bytes[row, j]
        factors = scale_bytes.to(torch.uint8).view(FP8).double().repeat_interleave(16, 1)
        packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
        return values * factors, (packed, sf)

    @pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 32), (130, 40, 96)])
    def test_tiled_scales(self, m, n, k):
        (a_values, a), (b_values, b) = self.operand(m, k, 1), self.operand(n, k, 2)
        d, c = torch.empty(m, n), torch.ones(m, n)
        uk.cublaslt_nvfp4_gemm_nt(a, b, d)
        assert uk.testing.calc_diff(d, a_values @ b_values.T) < 1e-12
        uk.cublaslt_nvfp4_gemm_nt(a, (b[0], b[1].view(torch.int8)), d, c)
        assert uk.testing.calc_diff(d, a_values @ b_values.T + 1) < 1e-12

    def test_refusals(self):
        a, b = self.operand(4, 64, 1)[1], self.operand(8, 64, 2)[1]
        with pytest.raises(InvalidArgumentError, match=r"sfa has 511 bytes .*expected 512: tiles \(1, 1, 32, 4, 4\)"):
            uk.cublaslt_nvfp4_gemm_nt((a[0], a[1][:-1]), b, torch.empty(4, 8))
        with pytest.raises(InvalidArgumentError, match=r"sfa has dtype torch.float32"):
            uk.cublaslt_nvfp4_gemm_nt((a[0], a[1].float()), b, torch.empty(4, 8))
        with pytest.raises(InvalidArgumentError, match="a has k=48, expected a multiple of 32"):
            uk.cublaslt_nvfp4_gemm_nt((a[0][:, :24].contiguous(), a[1]), b, torch.empty(4, 8))
        with pytest.raises(InvalidArgumentError, match="a has strides"):
            uk.cublaslt_nvfp4_gemm_nt((a[0][:, :16], a[1]), b, torch.empty(4, 8))


class TestSymmetric:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("k_major", [True, False])
    def test_syrk(self, dtype, k_major):
        a = integers(3, 20, 24)
        passed = a.to(dtype) if k_major else a.mT.to(dtype).contiguous().mT
        d = torch.full((3, 20, 30), 7.0, dtype=dtype)
        uk.batched_syrk(passed, d[..., :20])
        assert torch.equal(d[..., :20], (a @ a.mT).to(dtype))
        assert (d[..., 20:] == 7).all()
        one = torch.empty(20, 20, dtype=dtype)
        uk.batched_syrk(passed[1], one)
        assert torch.equal(one, (a[1] @ a[1].T).to(dtype))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("k_major", [True, False])
    def test_symm(self, dtype, k_major):
        half, b = integers(2, 20, 20), integers(2, 20, 9, seed=1)
        a = half + half.mT
        d = torch.empty(2, 20, 9, dtype=dtype)
        uk.batched_symm(a.to(dtype), b.to(dtype) if not k_major else b.mT.to(dtype).contiguous().mT, d)
        assert torch.equal(d, (a @ b).to(dtype))
        one = torch.empty(20, 9, dtype=dtype)
        uk.batched_symm(a[0].to(dtype), b[0].to(dtype), one)
        assert torch.equal(one, d[0])

    def test_empty(self):
        d = torch.full((2, 3, 3), torch.nan)
        uk.batched_syrk(torch.empty(2, 3, 0), d)
        assert (d == 0).all()
        uk.batched_syrk(torch.empty(0, 3, 4), torch.empty(0, 3, 3))

    def test_refusals(self):
        a = torch.ones(2, 4, 4)
        with pytest.raises(InvalidArgumentError, match="a has 1 dimensions"):
            uk.batched_syrk(torch.ones(4), torch.empty(4, 4))
        with pytest.raises(InvalidArgumentError, match=r"d has dtype torch.bfloat16, expected float32"):
            uk.batched_syrk(a, torch.empty(2, 4, 4).bfloat16())
        with pytest.raises(InvalidArgumentError, match=r"d has shape \(2, 4, 5\), expected \(2, 4, 4\)"):
            uk.batched_syrk(a, torch.empty(2, 4, 5))
        with pytest.raises(InvalidArgumentError, match="expected square"):
            uk.batched_symm(torch.ones(2, 4, 5), torch.ones(2, 5, 3), torch.empty(2, 4, 3))
        with pytest.raises(InvalidArgumentError, match="as many rows of b as a has columns"):
            uk.batched_symm(a, torch.ones(2, 5, 3), torch.empty(2, 4, 3))
        with pytest.raises(InvalidArgumentError, match="b has 2 dimensions and a 3"):
            uk.batched_symm(a, torch.ones(4, 3), torch.empty(2, 4, 3))
        with pytest.raises(InvalidArgumentError, match="d shares memory with a"):
            uk.batched_syrk(a, a)


class TestSkipHeadMid:
    def call(self, m=5, n=48, splits=(8, 3, 16), d=None, **options):
        a, b = integers(m, 128), integers(n, 128, seed=1)
        width = n + n // (splits[0] + splits[2]) * splits[1]
        d = torch.full((m, width), 7.0) if d is None else d
        pairs = ((x.to(FP8), torch.ones(-(-x.shape[0] // gran), 1)) for x, gran in ((a, 1), (b, 128)))
        uk.fp8_gemm_nt_skip_head_mid(*pairs, d, splits, **options)
        return d, a @ b.T

    @pytest.mark.parametrize("splits", [(8, 3, 16), (24, 5, 0), (0, 2, 12), (8, 0, 16)])
    def test_columns(self, splits):
        d, product = self.call(splits=splits)
        left, middle, right = splits
        expected = torch.full(d.shape, 7.0).double()
        for column in range(48):
            expected[:, column + (column + right) // (left + right) * middle] = product[:, column]
        assert torch.equal(d.double(), expected)

    def test_no_rows(self):
        self.call(m=0)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"splits": (8, 3, 17)}, "multiple of left"),
            ({"splits": (8, -1, 16)}, "head_splits is"),
            ({"d": torch.empty(5, 48)}, r"d has shape \(5, 48\), expected \(5, 54\)"),
            ({"recipe": (1, 1, 32)}, "expected 128 elements of K per scale"),
        ],
    )
    def test_refusals(self, options, text):
        with pytest.raises(InvalidArgumentError, match=text):
            self.call(**options)

    def test_splits_are_three_ints(self):
        for splits in ((8, 3), (8, 3.0, 16), 8):
            with pytest.raises(ArgumentTypeError, match="three ints"):
                uk.fp8_gemm_nt_skip_head_mid(
                    (torch.ones(4, 128).to(FP8), torch.ones(4, 1)), (torch.ones(24, 128).to(FP8), torch.ones(1, 1)),
                    torch.empty(4, 24), splits,
                )  # fmt: skip


class TestLegacy:
    @pytest.mark.parametrize("layout", ["nt", "nn"])
    def test_labels(self, layout):
        a, b = integers(256, 16), integers(2, 9, 16, seed=1)
        labels = int32(*[1] * 100, *[-1] * 28, *[0] * 128)
        d = torch.full((256, 9), torch.nan, dtype=torch.bfloat16)
        function = getattr(legacy, f"m_grouped_bf16_gemm_{layout}_contiguous_tl")
        function(a.bfloat16(), (b if layout == "nt" else b.mT.contiguous()).bfloat16(), d, labels)
        expected = torch.einsum("mk,mnk->mn", a, b[labels.clamp(min=0).long()])
        expected[100:128] = 0
        assert torch.equal(d, expected.bfloat16())

    @pytest.mark.parametrize("layout", ["nt", "nn"])
    def test_gathered_rows(self, layout):
        a, b = integers(10, 16), integers(2, 9, 16, seed=1)
        labels, rows = int32(*[1] * 128, *[0] * 120, *[-1] * 8), int32(*[3, -1, 9, 0] * 64)
        d = torch.full((256, 9), torch.nan, dtype=torch.bfloat16)
        function = getattr(legacy, f"a_fused_m_grouped_bf16_gemm_{layout}_contiguous_tl")
        function(a.bfloat16(), (b if layout == "nt" else b.mT.contiguous()).bfloat16(), d, (labels, rows))
        expected = torch.einsum("mk,mnk->mn", a[rows.clamp(min=0).long()], b[labels.clamp(min=0).long()])
        expected[(rows < 0) | (labels < 0)] = 0
        assert torch.equal(d, expected.bfloat16())

    @pytest.mark.parametrize("gathers", ["a", "b"])
    @pytest.mark.parametrize("acc", [False, True])
    def test_gathered_k(self, gathers, acc):
        ranges = ((0, 20), (32, 32), (32, 64), (20, 10), (20, -1))  # what ends before it starts is empty
        starts, stops = int32(*(start for start, _ in ranges)), int32(*(stop for _, stop in ranges))
        indices = int32(*[5, -1, 7, 0] * 16)
        source, other = integers(10, 6), integers(64, 6, seed=1)
        d = torch.full((5, 6, 6), 4.0 if acc else torch.nan)
        function = {
            "a": legacy.a_fused_k_grouped_bf16_gemm_tn_contiguous_tl,
            "b": legacy.b_fused_k_grouped_bf16_gemm_tn_contiguous_tl,
        }[gathers]
        a, b = (source, other) if gathers == "a" else (other, source)
        function(a.bfloat16(), b.bfloat16(), d, (indices, starts, stops), acc)
        gathered = source[indices.clamp(min=0).long()] * (indices >= 0).double().unsqueeze(1)
        left, right = (gathered, other) if gathers == "a" else (other, gathered)
        for group, (start, stop) in enumerate(ranges):
            rows = slice(start, max(start, stop))
            assert torch.equal(d[group].double(), left[rows].T @ right[rows] + 4 * acc)

    def test_refusals(self):
        a, b, d = torch.ones(10, 16).bfloat16(), torch.ones(2, 9, 16).bfloat16(), torch.empty(4, 9)
        call = legacy.a_fused_m_grouped_bf16_gemm_nt_contiguous_tl
        with pytest.raises(InvalidArgumentError, match=r"m_row_indices\[1\] is 10, expected a row of a"):
            call(a, b, d, (int32(0, 0, 0, 0), int32(0, 10, 0, 0)))
        with pytest.raises(InvalidArgumentError, match=r"m_indices\[0\] is 2, expected a group"):
            call(a, b, d, (int32(2, 0, 0, 0), int32(0, 0, 0, 0)))
        with pytest.raises(ArgumentTypeError, match=r"expected \(m_indices, m_row_indices\)"):
            call(a, b, d, int32(0, 0, 0, 0))
        with pytest.raises(InvalidArgumentError, match=r"k_end\[0\] is 11, expected at most the number of indices"):
            legacy.a_fused_k_grouped_bf16_gemm_tn_contiguous_tl(
                a, a, torch.empty(1, 16, 16), (int32(*[0] * 10), int32(0), int32(11)), False
            )
