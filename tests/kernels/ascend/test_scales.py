"""Scale transforms on the vector cores: the same words as `convert_scales`, and what is refused."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.kernels import scales as scales_module
from unikernels.backends.ascend.kernels.scales import scale_words
from unikernels.backends.ascend.runtime.executor import collected_kernels, executor_on
from unikernels.backends.ascend.runtime.simulated import recorded_reports
from unikernels.errors import InvalidArgumentError, UnsupportedOperationError
from unikernels.operations.k_grouped import KGroupLayout
from unikernels.operations.m_grouped import GroupLayout
from unikernels.scale_layouts import ScaleFormat, Scales, convert_scales, psum_valid_rows

FP32, INT16, INT32 = ScaleFormat.FP32, ScaleFormat.UE8M0X2_INT16, ScaleFormat.UE8M0X4_INT32


@pytest.fixture
def make_scales():
    """A function that returns random scales of a matrix [mn, k], or [groups, mn, k]."""
    generator = torch.Generator().manual_seed(3)

    def make(form, mn, k, gran_mn=1, gran_k=32, groups=None, k_major=True) -> Scales:
        scales = Scales(torch.empty(0), form, gran_mn, gran_k, mn, k)
        shape = (*(() if groups is None else (groups,)), scales.num_mn_blocks, scales.num_words)
        if form is FP32:
            data = torch.exp2(torch.randint(-126, 128, shape, generator=generator).float())
        else:
            limits = torch.iinfo(form.dtype)
            data = torch.randint(limits.min, limits.max + 1, shape, generator=generator, dtype=form.dtype)
        return Scales(data if k_major else data.mT.contiguous().mT, form, gran_mn, gran_k, mn, k)

    return make


@pytest.fixture
def executor(ascend):
    return executor_on(torch.device("cpu"))


def assert_same_words(found, expected: Scales):
    assert found.dtype is torch.int16
    assert found.is_contiguous()
    assert torch.equal(found, expected.data.mT)


@pytest.mark.parametrize("form", [FP32, INT16, INT32], ids=lambda form: form.label)
@pytest.mark.parametrize(("gran_mn", "gran_k"), [(1, 32), (128, 128)])
@pytest.mark.parametrize("k_major", [True, False])
def test_every_form_gives_the_words_of_convert_scales(executor, make_scales, form, gran_mn, gran_k, k_major):
    """Tails of rows and words, an odd number of blocks (its last high byte is 0), and one row or column alone."""
    for mn, k in ((300, 2720), (1, 33), (129, 64), (4, 1), (257, 4097), (128, 2048)):
        scales = make_scales(form, mn, k, gran_mn, gran_k, k_major=k_major)
        assert_same_words(scale_words(executor, scales), convert_scales(scales, INT16))


def test_groups_of_rows_need_not_divide_tiles(executor, make_scales):
    for gran_mn in (2, 3, 100, 1000):
        scales = make_scales(FP32, 333, 256, gran_mn, 128, groups=3)
        assert_same_words(scale_words(executor, scales), convert_scales(scales, INT16))


def test_free_strides(executor, make_scales):
    scales = make_scales(FP32, 140, 200, groups=2)
    wide = torch.full((2, 145, 30), -1.0)
    wide[:, 5:, 1:15:2] = scales.data  # no unit stride
    padded = torch.full((2, 150, 9), -1.0)
    padded[:, :140, :7] = scales.data  # a row pitch
    permuted = scales.data.permute(1, 0, 2).contiguous().permute(1, 0, 2)  # groups inside rows
    for data in (wide[:, 5:, 1:15:2], padded[:, :140, :7], permuted, scales.data[:1].expand(3, 140, 7)):
        given = Scales(data, FP32, 1, 32, 140, 200)
        assert_same_words(scale_words(executor, given), convert_scales(given, INT16))
    row = Scales(scales.data[0, :1].expand(140, 7), FP32, 1, 32, 140, 200)
    assert_same_words(scale_words(executor, row), convert_scales(row, INT16))


def test_finished_words_are_returned_without_a_kernel(executor, make_scales):
    scales = convert_scales(make_scales(FP32, 34, 200, groups=2), INT16)
    with recorded_reports() as reports:
        words = scale_words(executor, scales)
        alone = scale_words(executor, Scales(scales.data[0, :1, :1], INT16, 1, 32, 1, 64))
    assert not reports
    assert words.data_ptr() == scales.data.data_ptr()
    assert torch.equal(words, scales.data.mT)
    assert alone.stride() == (1, 1)


@pytest.mark.parametrize("form", [FP32, INT32], ids=lambda form: form.label)
def test_rows_of_no_prefix_sum_group_are_not_read(executor, make_scales, form):
    ends = torch.tensor([100, 100, 200, 256, 300], dtype=torch.int32)  # empty, overlapping and full groups
    layout = GroupLayout("psum", ends, alignment=64)
    scales = make_scales(form, 400, 224)
    gaps = ~psum_valid_rows(ends, 400, 64)
    scales.data[gaps] = float("nan") if form is FP32 else -1
    expected = convert_scales(scales, INT16, psum_layout=ends, alignment=64)
    assert_same_words(scale_words(executor, scales, layout), expected)
    assert not expected.data[gaps].any()


def test_masked_and_padding_rows_are_not_read(executor, make_scales):
    counts = torch.tensor([0, 130, 7], dtype=torch.int32)
    scales = make_scales(FP32, 130, 224, groups=3)
    for group, count in enumerate(counts):
        scales.data[group, count:] = -1.0
    assert_same_words(
        scale_words(executor, scales, GroupLayout("masked", counts)), convert_scales(scales, INT16, masked_m=counts)
    )
    labels = torch.tensor([0] * 100 + [-1] * 28 + [2] * 12, dtype=torch.int32)
    scales = make_scales(FP32, 140, 224)
    scales.data[labels < 0] = 0.75
    expected = convert_scales(scales, INT16, valid_rows=labels >= 0)
    assert_same_words(scale_words(executor, scales, GroupLayout("index", labels)), expected)


@pytest.mark.parametrize("form", [FP32, INT16], ids=lambda form: form.label)
def test_blocks_of_no_group_along_k_are_not_read(executor, make_scales, form):
    """The K-grouped form: K first in memory, groups at multiples of an alignment, with an empty one."""
    ends = torch.tensor([200, 256, 300, 2000], dtype=torch.int32)
    scales = make_scales(form, 133, 2048, k_major=False)
    expected = uk.scale_layouts.transform_k_grouped_sf(
        scales.data, 133, 2048, (1, 1, 32), is_sfa=True, psum_layout=ends, alignment=256
    )
    if form is FP32:
        in_a_group = psum_valid_rows(ends, 2048, 256)[::32]
        scales.data[:, ~in_a_group] = float("inf")
    found = scale_words(executor, scales, columns=KGroupLayout("psum", ends, alignment=256))
    assert torch.equal(found, expected.mT)


@pytest.mark.parametrize("bad", [0.75, -1.0, -0.0, float("inf"), float("nan"), 2.0**-128])
def test_other_values_than_powers_of_two_are_refused(executor, make_scales, bad):
    scales = make_scales(FP32, 300, 2720)
    scales.data[299, 84] = bad
    with pytest.raises(InvalidArgumentError, match=r"scales\[299, 84\] = .*expected a power of two"):
        scale_words(executor, scales)
    scales.data[299, 84] = 0.0  # byte 0, and so is the subnormal 2^-127
    scales.data[0, 0] = 2.0**-127
    assert_same_words(scale_words(executor, scales), convert_scales(scales, INT16))


def test_layout_functions_use_the_kernel(ascend, make_scales):
    ends = torch.tensor([100, 200], dtype=torch.int32)
    sf = make_scales(FP32, 256, 224).data
    with recorded_reports() as reports:
        found = uk.transform_sf_into_required_layout(sf, 256, 224, (1, 32), psum_layout=ends)
        k_first = uk.transform_k_grouped_sf_into_required_layout(sf, 256, 224, (1, 1, 32), True, ends[:1])
    assert len(reports) == 2
    options = {"target": INT16, "psum_layout": ends, "alignment": 256}
    assert torch.equal(found, uk.scale_layouts.transform_sf(sf, 256, 224, (1, 32), **options))
    assert found.stride() == (1, 256)
    assert torch.equal(
        k_first, uk.scale_layouts.transform_k_grouped_sf(sf, 256, 224, (1, 1, 32), is_sfa=True, psum_layout=ends[:1])
    )
    sf[0, 1] = 3.0
    with pytest.raises(InvalidArgumentError, match=r"transform_sf_into_required_layout: sf\[0, 1\] = 3.0"):
        uk.transform_sf_into_required_layout(sf, 256, 224, (1, 32))


@pytest.mark.parametrize("form", [FP32, INT32], ids=lambda form: form.label)
def test_rows_that_share_scales_are_repeated_by_a_kernel(ascend, small_integers, form, monkeypatch):
    """Groups may begin inside such a block; the second one belongs to none and holds NaN."""
    ends = torch.tensor([100, 456], dtype=torch.int32)
    a, b = small_integers(512, 256).to(torch.float8_e4m3fn), small_integers(2 * 40, 256).to(torch.float8_e4m3fn)
    sfa, sfb = torch.exp2(torch.arange(4 * 8.0).view(4, 8) - 16), torch.ones(2, 40, 8)
    sfa[1] = float("nan")
    if form is INT32:
        sfa = (sfa.view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)

    def call():
        d = torch.zeros(512, 40)
        uk.m_grouped_fp8_fp4_gemm_nt_contiguous(
            (a, sfa), (b.view(2, 40, 256), sfb), d, ends, recipe_a=(128, 32), recipe_b=(1, 32), use_psum_layout=True
        )
        return d

    with uk.use_backend("reference"):
        uk.set_mk_alignment_for_contiguous_layout(256)
        expected = call()
    monkeypatch.setattr(uk.backend.Backend, "scales_per_row", None)  # what other backends do
    assert torch.equal(call(), expected)
    with collected_kernels() as kernels:
        call()
    assert [kernel.program for kernel in kernels].count("scales") == 2  # one per operand: the words need no second one
    if form is FP32:
        monkeypatch.undo()
        sfa[3, 5] = 3.0
        with pytest.raises(UnsupportedOperationError, match="float32 scales of a hold other values"):
            call()


@pytest.mark.parametrize(
    ("form", "gran_mn", "gran_k"), [(INT32, 1, 32), (INT32, 3, 128), (FP32, 7, 32), (FP32, 100, 128)]
)
def test_layout_functions_take_what_gemms_take(ascend, make_scales, form, gran_mn, gran_k):
    scales = make_scales(form, 300, 1000, gran_mn, gran_k, groups=2)
    with recorded_reports() as reports:
        found = uk.transform_sf_into_required_layout(scales.data, 300, 1000, (gran_mn, gran_k), 2)
    assert len(reports) == 1
    expected = convert_scales(scales, INT16).data
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("gran_k", [32, 128])
def test_k_grouped_int32_words_are_transformed_by_a_kernel(ascend, make_scales, gran_k):
    ends = torch.tensor([100, 256, 600], dtype=torch.int32)
    words = make_scales(INT32, 34, 1024 if gran_k == 32 else 4 * 512, gran_k=gran_k).data
    with recorded_reports() as reports:
        found = uk.transform_k_grouped_sf_into_required_layout(words, 34, 1024, (1, 1, gran_k), True, ends)
    assert len(reports) == 1
    options = {"is_sfa": True, "psum_layout": ends}
    assert torch.equal(found, uk.scale_layouts.transform_k_grouped_sf(words, 34, 1024, (1, 1, gran_k), **options))
    assert found.stride() == (1, 34)


def test_the_flag_of_refused_scales_is_read_once():
    device = torch.device("cpu")  # only an NPU's flag is kept between calls; the word is handled alike
    scales_module._flag(device).fill_(1)
    assert scales_module.refused_scales(device)
    assert not scales_module.refused_scales(device)


def test_nothing_waits_for_a_device(recorder):
    """Tensors without data stand in for an NPU's: reading a value from them fails. Not run on hardware."""
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    scales = Scales(torch.empty(300, 8, device="meta"), FP32, 1, 32, 300, 256)
    words = scale_words(recorder, scales, GroupLayout("psum", ends, 128), KGroupLayout("psum", ends, 256))
    assert (words.shape, words.dtype) == ((4, 300), torch.int16)
    ((variant, arguments),) = recorder.launched
    assert (variant.rows, variant.masks_k, variant.num_cores) == ("psum", True, 8)
    source, rows, columns, _, is_bad, *numbers = arguments
    assert (source.shape, source.dtype) == ((1, 300, 8), torch.int32)
    assert rows is columns is ends
    assert is_bad.device.type == "meta"  # the flag stays on the device
    assert numbers == [8, 1, 128, 256]
