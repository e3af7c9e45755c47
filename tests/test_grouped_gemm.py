"""GEMMs grouped along M and K: faults users met, every rule about groups, and the forms that must give equal results."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.epilogue import Alpha, BF16StochasticRounding, FP8CastWithClamp
from unikernels.errors import ArgumentTypeError, InvalidArgumentError

FP8 = torch.float8_e4m3fn
BACKENDS = ["cpu", "reference"]


@pytest.fixture(params=BACKENDS, autouse=True)
def _backend(request):
    with uk.use_backend(request.param):
        yield


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def ones(*shape, gran=128):
    """FP8 ones with one unit scale per row and `gran` elements."""
    return torch.ones(shape).to(FP8), torch.ones(*shape[:-1], -(-shape[-1] // gran))


def block_ones(num_groups, n, k, value=1.0):
    data = torch.full((num_groups, n, k), value).to(FP8)
    return data, torch.ones(num_groups, -(-n // 128), -(-k // 128))


def fp4_ones(*shape):
    """Packed FP4 ones (code 2), [.., k / 2]."""
    return torch.full((*shape[:-1], shape[-1] // 2), 0x22, dtype=torch.uint8).view(torch.int8)


class TestMasked:
    @pytest.mark.parametrize("garbage", [torch.nan, -1.0, 0.3, "bits"])
    def test_scale_rows_past_the_mask_do_not_matter(self, garbage):
        a, sfa = ones(2, 8, 128)
        bad = int32(0x7FFFFFFF).view(torch.float32).item() if garbage == "bits" else garbage
        sfa[0, 3:] = bad
        sfa[1] = bad
        d = torch.full((2, 8, 128), 7.0, dtype=torch.bfloat16)
        for _ in range(2):  # the second call works too
            uk.m_grouped_fp8_gemm_nt_masked((a, sfa), block_ones(2, 128, 128), d, int32(3, 0), 3)
            assert (d[0, :3] == 128).all()
            assert (d[0, 3:] == 7).all()
            assert (d[1] == 7).all()

    def test_nothing_to_do(self):
        a = torch.ones(2, 4, 32).bfloat16()
        d = torch.full((2, 4, 8), 7.0)
        uk.m_grouped_bf16_gemm_nt_masked(a, torch.ones(2, 8, 32).bfloat16(), d, int32(0, 0), 0)
        assert (d == 7).all()
        uk.m_grouped_bf16_gemm_nt_masked(a[:, :0], torch.ones(2, 8, 32).bfloat16(), d[:, :0], int32(0, 0), 0)

    def test_new_counts_in_the_same_tensor_are_seen(self):
        a, b, counts = torch.ones(2, 4, 32).bfloat16(), torch.ones(2, 8, 32).bfloat16(), int32(4, 0)
        for first, second in ((4, 0), (0, 4)):
            counts.copy_(int32(first, second))
            d = torch.full((2, 4, 8), 7.0)
            uk.m_grouped_bf16_gemm_nt_masked(a, b, d, counts, 4)
            assert [(d[0] == 32).all(), (d[1] == 32).all()] == [first > 0, second > 0]

    @pytest.mark.parametrize("counts", [(5, 0), (-1, 0)])
    def test_counts_out_of_range(self, counts):
        a, b = torch.ones(2, 4, 32).bfloat16(), torch.ones(2, 8, 32).bfloat16()
        with pytest.raises(InvalidArgumentError, match=r"masked_m\[0\] is (5|-1), expected 0 to 4"):
            uk.m_grouped_bf16_gemm_nt_masked(a, b, torch.empty(2, 4, 8), int32(*counts), 4)

    @pytest.mark.parametrize(
        ("expected_m", "text"), [(-1, "expected at least 0"), (1.5, "expected a Python int"), (None, "Python int")]
    )
    def test_expected_m(self, expected_m, text):
        a, b = torch.ones(2, 4, 32).bfloat16(), torch.ones(2, 8, 32).bfloat16()
        with pytest.raises(InvalidArgumentError, match=f"expected_m.*{text}"):
            uk.m_grouped_bf16_gemm_nt_masked(a, b, torch.empty(2, 4, 8), int32(1, 1), expected_m)

    def test_legacy_names(self):
        assert uk.fp8_m_grouped_gemm_nt_masked is uk.m_grouped_fp8_fp4_gemm_nt_masked
        assert uk.bf16_m_grouped_gemm_nt_masked is uk.m_grouped_bf16_gemm_nt_masked


class TestContiguous:
    def test_every_row_is_computed_by_its_own_group(self):
        # Groups packed at 64 while the alignment in force is 128.
        labels = torch.full((448,), -1, dtype=torch.int32)
        labels[:128], labels[128:258], labels[320:385] = 0, 1, 2
        b = torch.stack([torch.full((40, 64), group + 1.0) for group in range(3)]).bfloat16()
        d = torch.empty(448, 40)
        uk.m_grouped_bf16_gemm_nt_contiguous(torch.ones(448, 64).bfloat16(), b, d, labels)
        valid = labels >= 0
        assert torch.equal(d[valid][:, 7], (labels[valid] + 1) * 64.0)

    def test_unsorted_labels(self):
        generator = torch.Generator().manual_seed(1)
        labels = torch.randint(-1, 4, (200,), generator=generator, dtype=torch.int32)
        a = torch.randint(-4, 5, (200, 32), generator=generator).bfloat16()
        b = torch.randint(-4, 5, (4, 9, 32), generator=generator).bfloat16()
        d = torch.full((200, 9), 7.0)
        uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, labels)
        expected = torch.einsum("mk,mnk->mn", a.double(), b.double()[labels.clamp(min=0).long()])
        assert torch.equal(d[labels >= 0].double(), expected[labels >= 0])
        assert (d[labels < 0] == 0).all()

    @pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("form", ["labels", "ends"])
    def test_garbage_in_padding_rows_does_not_leak(self, form, out):
        results = []
        for payload, scale in ((0x7F, torch.nan), (0, 1.0)):
            a, sfa = ones(128, 128)
            a[:3] = torch.arange(3 * 128).remainder(7).view(3, 128).to(FP8)
            a.view(torch.uint8)[3:] = payload
            sfa[3:] = scale
            d = torch.full((128, 33), 7.0, dtype=out)
            layout = int32(0, 0, 0, *[-1] * 125) if form == "labels" else int32(3)
            uk.m_grouped_fp8_gemm_nt_contiguous(
                (a, sfa), block_ones(1, 33, 128), d, layout, use_psum_layout=form == "ends"
            )
            results.append(d)
            assert d[:3].isfinite().all()
            if form == "ends":
                assert (d[3:] == 0).all()
        assert torch.equal(results[0][:3], results[1][:3])

    def test_end_offsets(self):
        # Group 1 is empty, rows after the last aligned end keep their content.
        uk.set_mk_alignment_for_contiguous_layout(8)
        a = torch.arange(40.0).unsqueeze(1).repeat(1, 16).bfloat16()
        b = torch.stack([torch.full((3, 16), value) for value in (1.0, 2.0, 4.0)]).bfloat16()
        d = torch.full((40, 3), 7.0)
        uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, int32(5, 8, 19), use_psum_layout=True)
        expected = torch.full((40,), 7.0)
        expected[:24] = 0
        expected[:5] = torch.arange(5) * 16.0
        expected[8:19] = torch.arange(8, 19) * 64.0
        assert torch.equal(d, expected.unsqueeze(1).repeat(1, 3))

    def test_last_group_without_its_padding_rows(self):
        d = torch.empty(130, 4)
        uk.m_grouped_bf16_gemm_nt_contiguous(
            torch.ones(130, 8).bfloat16(), torch.ones(2, 4, 8).bfloat16(), d, int32(100, 130), use_psum_layout=True
        )
        assert (d[:100] == 8).all()
        assert (d[100:128] == 0).all()
        assert (d[128:] == 8).all()

    def test_no_rows(self):
        for b, names in ((torch.ones(2, 8, 32).bfloat16(), "nt"), (torch.ones(2, 32, 8).bfloat16(), "nn")):
            function = getattr(uk, f"m_grouped_bf16_gemm_{names}_contiguous")
            function(torch.ones(0, 32).bfloat16(), b, torch.empty(0, 8), int32())
            function(torch.ones(0, 32).bfloat16(), b, torch.empty(0, 8), int32(0, 0), use_psum_layout=True)

    @pytest.mark.parametrize(
        ("layout", "options", "text"),
        [
            (int32(128, 256), {}, r"grouped_layout has shape \(2,\), expected \(256,\): the group of every row"),
            (
                int32(*[0] * 256),
                {"use_psum_layout": True},
                r"has shape \(256,\), expected \(2,\): one end offset per group",
            ),
            (int32(256, 128), {"use_psum_layout": True}, r"grouped_layout\[1\] is 128 .*expected at least 256"),
            (int32(-3, 128), {"use_psum_layout": True}, r"grouped_layout\[0\] is -3 .*expected at least 0"),
            (int32(100, 300), {"use_psum_layout": True}, "ends at 300 .*but a has 256 rows"),
            (int32(*[2] * 256), {}, r"grouped_layout\[0\] is 2, expected a group"),
            (torch.zeros(256, dtype=torch.int64), {}, "grouped_layout has dtype torch.int64, expected int32"),
            (torch.zeros(512, dtype=torch.int32)[::2], {}, "grouped_layout has strides"),
            (
                int32(*[0] * 256),
                {"expected_m_for_psum_layout": 3},
                "expected_m_for_psum_layout is 3 but use_psum_layout is False",
            ),
            (int32(*[0] * 256), {"use_psum_layout": 1}, "use_psum_layout is 1"),
            (int32(*[0] * 256), {"ensure_zero_padding": None}, "ensure_zero_padding is None"),
            ([0] * 256, {}, "grouped_layout is a list"),
        ],
    )
    def test_wrong_layouts_are_named(self, layout, options, text):
        a, b = torch.ones(256, 32).bfloat16(), torch.ones(2, 8, 32).bfloat16()
        d = torch.full((256, 8), 7.0)
        with pytest.raises(InvalidArgumentError, match=text):
            uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, layout, **options)
        assert (d == 7).all()

    @pytest.mark.parametrize(
        ("a", "b", "d", "text"),
        [
            ((32, 16), (2, 8, 24), (32, 8), "a has k=16 .* but b has k=24"),
            ((32, 16), (2, 8, 16), (32, 9), r"d has shape \(32, 9\), expected \(32, 8\)"),
            ((32, 16), (0, 8, 16), (32, 8), "b has 0 groups"),
            ((32, 16), (2, 0, 16), (32, 0), "n=0"),
            ((32, 0), (2, 8, 0), (32, 8), "k=0"),
            ((32, 16), (8, 16), (32, 8), "b has 2 dimensions"),
        ],
    )
    def test_wrong_shapes_are_named(self, a, b, d, text):
        labels = torch.zeros(32, dtype=torch.int32)
        with pytest.raises(InvalidArgumentError, match=text):
            uk.m_grouped_bf16_gemm_nt_contiguous(
                torch.ones(a).bfloat16(), torch.ones(b).bfloat16(), torch.empty(d), labels
            )

    def test_mn_major_a_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="K-major a"):
            uk.m_grouped_bf16_gemm_nt_contiguous(
                torch.ones(16, 32).bfloat16().T, torch.ones(1, 8, 16).bfloat16(), torch.empty(32, 8), int32(*[0] * 32)
            )

    def test_fp8_output_is_refused(self):
        sfd = torch.empty(1, 32, dtype=torch.int32).T
        with pytest.raises(InvalidArgumentError, match="FP8CastWithClamp is not offered by grouped GEMMs"):
            uk.m_grouped_bf16_gemm_nt_contiguous(
                torch.ones(32, 16).bfloat16(), torch.ones(1, 128, 16).bfloat16(), torch.empty(32, 128).to(FP8),
                int32(*[0] * 32), epilogue=FP8CastWithClamp(sfd),
            )  # fmt: skip

    def test_epilogues(self):
        a, b, labels = torch.full((32, 16), 1.125).bfloat16(), torch.full((1, 8, 16), 1.0).bfloat16(), int32(*[0] * 32)
        d = torch.empty(32, 8)
        uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, labels, epilogue=Alpha(0.5))
        assert (d == 9).all()
        # nn has no expected_m_for_psum_layout on CUDA: a positional epilogue stands in its place.
        uk.m_grouped_bf16_gemm_nn_contiguous(a, b.mT, d, labels, "nk", False, True, Alpha(-1.0))
        assert (d == -18).all()
        out = torch.empty(32, 8, dtype=torch.bfloat16)
        uk.m_grouped_bf16_gemm_nt_contiguous(a, b, out, labels, epilogue=BF16StochasticRounding())
        assert (out == 18).all()
        with pytest.raises(InvalidArgumentError, match="epilogue_class"):
            uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, labels, epilogue=Alpha(1.0), epilogue_class=Alpha(1.0))

    @pytest.mark.parametrize("sizes", [(3, 0, 5), (0, 0)], ids=str)
    @pytest.mark.parametrize("layout", ["index", "psum", "masked"])
    def test_stochastic_rounding_beside_empty_groups(self, layout, sizes):
        b = torch.tensor([1.125, 2.25, 4.5]).repeat_interleave(96).view(3, 6, 16).bfloat16()[: len(sizes)]
        labels = torch.full((128 * len(sizes),), -1, dtype=torch.int32)
        ends, start = [], 0
        for group, size in enumerate(sizes):
            start = 128 * group if layout == "masked" else -(-start // 128) * 128
            labels[start : start + size] = group
            start += size
            ends.append(start)
        a, d = torch.ones(len(labels), 16).bfloat16(), torch.full((len(labels), 6), 7.0, dtype=torch.bfloat16)
        options = {"epilogue": BF16StochasticRounding()}
        if layout == "masked":
            slabs = (len(sizes), 128, -1)
            uk.m_grouped_bf16_gemm_nt_masked(a.view(slabs), b, d.view(slabs), int32(*sizes), 4, **options)
        else:
            psum = layout == "psum"
            groups = int32(*ends) if psum else labels
            uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, groups, use_psum_layout=psum, **options)
        for group in range(len(sizes)):
            assert (d[labels == group] == 18 * 2**group).all()
        if layout == "psum":
            padding = torch.arange(len(labels)) < -(-ends[-1] // 128) * 128
            assert (d[(labels < 0) & padding] == 0).all()
            assert (d[~padding] == 7).all()

    def test_one_scale_for_several_rows_of_a(self):
        a, b = ones(48, 128)[0], block_ones(2, 16, 128)
        sfa = torch.tensor([[1.0], [2.0], [4.0]])
        labels = int32(*[0] * 20, *[1] * 28)
        d = torch.empty(48, 16)
        uk.m_grouped_fp8_gemm_nt_contiguous((a, sfa), b, d, labels, recipe=(16, 128, 128))
        assert torch.equal(d[:, 0], torch.tensor([128.0, 256.0, 512.0]).repeat_interleave(16))

    @pytest.mark.parametrize("n", [33, 40])
    def test_rows_keep_apart_when_n_is_no_tile(self, n):
        a = torch.tensor([1.0, 2.0, 4.0, 8.0]).unsqueeze(1).repeat(1, 64).bfloat16()
        for _ in range(20):
            d = torch.full((4, n), 7.0, dtype=torch.bfloat16)
            uk.m_grouped_bf16_gemm_nt_contiguous(a, torch.ones(1, n, 64).bfloat16(), d, int32(0, 0, 0, 0))
            assert torch.equal(d.float(), torch.tensor([64.0, 128.0, 256.0, 512.0]).unsqueeze(1).repeat(1, n))


class TestLargeTables:
    """Offsets beyond 2^31 elements. Only the pages in use exist; the reference decodes all groups and is left out."""

    STRIDE, N, K = 1 << 26, 64, 256

    def last_expert(self):
        storage = torch.empty(33 * self.STRIDE, dtype=torch.uint8)
        b = storage.as_strided((33, self.N, self.K), (self.STRIDE, self.K, 1))
        b[32] = 0x40  # 2.0, starting at element 2^31
        return b.view(FP8), torch.ones(33, 1, 2)

    def test_labelled_rows(self):
        with uk.use_backend("cpu"):
            d = torch.empty(128, self.N)
            labels = int32(*[32] * 16, *[-1] * 112)
            uk.m_grouped_fp8_gemm_nt_contiguous(ones(128, self.K), self.last_expert(), d, labels)
            assert (d[:16] == 512).all()

    def test_masked_slabs(self):
        with uk.use_backend("cpu"):
            d = torch.empty(33 * self.STRIDE, dtype=torch.bfloat16).as_strided(
                (33, 16, self.N), (self.STRIDE, self.N, 1)
            )
            counts = torch.zeros(33, dtype=torch.int32)
            counts[32] = 16
            uk.m_grouped_fp8_gemm_nt_masked(ones(33, 16, self.K), self.last_expert(), d, counts, 16)
            assert (d[32] == 512).all()

    def test_last_of_33_large_experts(self):
        # FC-22: 2.2 GB of weights, all in memory; the last expert starts at element 2^31.
        size = 8192
        weights = torch.full((33, size, size), 0x38, dtype=torch.uint8)
        weights[32] = 0x40
        b = weights.view(FP8), torch.ones(33, size // 128, size // 128)
        with uk.use_backend("cpu"):
            d = torch.full((128, size), 7.0, dtype=torch.bfloat16)
            labels = int32(*[32] * 16, *[-1] * 112)
            uk.m_grouped_fp8_gemm_nt_contiguous(ones(128, size), b, d, labels)
        assert (d[:16] == 16384).all()


class TestAlignedGroups:
    def test_backends_that_read_one_label_per_tile_refuse_a_misplaced_group(self, monkeypatch):
        from unikernels import _registry

        with uk.use_backend("cpu"):
            labels = torch.full((448,), -1, dtype=torch.int32)
            labels[:128], labels[128:258], labels[320:385] = 0, 1, 2
            monkeypatch.setattr(type(_registry.backend("cpu")), "needs_aligned_groups", True)
            call = (torch.ones(448, 32).bfloat16(), torch.ones(3, 8, 32).bfloat16(), torch.empty(448, 8))
            with pytest.raises(
                InvalidArgumentError, match=r"grouped_layout\[320\] is 2 where row 256 has 1.*alignment in force is 128"
            ):
                uk.m_grouped_bf16_gemm_nt_contiguous(*call, labels)
            uk.set_mk_alignment_for_contiguous_layout(64)
            uk.m_grouped_bf16_gemm_nt_contiguous(*call, labels)


class TestFp4:
    @pytest.mark.parametrize("dtype", [torch.uint8, getattr(torch, "float4_e2m1fn_x2", torch.uint8)])
    def test_a_byte_is_a_byte(self, dtype):
        generator = torch.Generator().manual_seed(2)
        codes = torch.randint(0, 256, (2, 16, 32), generator=generator, dtype=torch.uint8)
        sf = torch.ones(2, 16, 2)
        a, labels = ones(32, 64, gran=32), int32(*[0] * 16, *[1] * 16)
        results = []
        for b in (codes.view(torch.int8), codes.view(dtype)):
            d = torch.empty(32, 16)
            uk.m_grouped_fp8_fp4_gemm_nt_contiguous(a, (b, sf), d, labels, recipe=(1, 1, 32))
            masked = torch.empty(2, 16, 16)
            uk.m_grouped_fp8_fp4_gemm_nt_masked(
                (a[0].view(2, 16, 64), a[1].view(2, 16, 2)), (b, sf), masked, int32(16, 16), 16, recipe=(1, 1, 32)
            )
            assert torch.equal(masked.view(32, 16), d)
            results.append(d)
        assert torch.equal(*results)

    def test_other_dtypes_are_refused(self):
        b = torch.zeros(2, 16, 32, dtype=torch.int16)
        with pytest.raises(InvalidArgumentError, match="int8, uint8 or float4_e2m1fn_x2"):
            uk.m_grouped_fp8_fp4_gemm_nt_contiguous(
                ones(32, 64, gran=32),
                (b, torch.ones(2, 16, 2)),
                torch.empty(32, 16),
                int32(*[0] * 32),
                recipe=(1, 1, 32),
            )

    def test_both_majors(self):
        k_major = fp4_ones(1, 64, 64)
        transposed = uk.utils.transpose_packed_fp4(k_major[0]).unsqueeze(0)  # [1, k, n / 2]
        sf, labels = torch.ones(1, 64, 2), int32(*[0] * 64)
        for b in (k_major, transposed.mT):
            d = torch.empty(64, 64)
            uk.m_grouped_fp8_fp4_gemm_nt_contiguous(ones(64, 64, gran=32), (b, sf), d, labels, recipe=(1, 1, 32))
            assert (d == 64).all()
        d = torch.empty(64, 64)
        uk.m_grouped_fp8_fp4_gemm_nn_contiguous(
            ones(64, 64, gran=32), (transposed, sf.mT), d, labels, recipe=(1, 1, 32)
        )
        assert (d == 64).all()


def test_pairs_are_required():
    with pytest.raises(ArgumentTypeError, match=r"a is a Tensor, expected a pair \(data, scales\)"):
        uk.m_grouped_fp8_gemm_nt_contiguous(
            torch.ones(4, 8).to(FP8), block_ones(1, 8, 8), torch.empty(4, 8), int32(0, 0, 0, 0)
        )
