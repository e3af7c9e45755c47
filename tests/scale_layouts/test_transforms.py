"""DeepGEMM's scale layout functions: values, shapes, strides and refusals of the contract."""

from __future__ import annotations

import math

import pytest
import torch

from unikernels.errors import InvalidArgumentError
from unikernels.scale_layouts import (
    ScaleFormat,
    Scales,
    convert_k_grouped_scales,
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor,
    get_tma_aligned_size,
    k_groups,
    transform_k_grouped_sf,
    transform_sf,
)

FP32, INT32, INT16 = ScaleFormat.FP32, ScaleFormat.UE8M0X4_INT32, ScaleFormat.UE8M0X2_INT16


def power_of_two_scales(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.exp2(torch.randint(-60, 60, shape, generator=generator).float())


def packed_plainly(sf: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Pack in NumPy-like steps that share nothing with the library: frexp, pad, view."""
    exponents = (torch.frexp(sf).exponent + 126).to(torch.uint8)
    padding = -sf.shape[-1] % dtype.itemsize
    return torch.nn.functional.pad(exponents, (0, padding)).contiguous().view(dtype)


@pytest.mark.parametrize(
    ("x", "size", "expected"), [(3, 4, 4), (4096, 4, 4096), (4097, 2, 4104), (1, 16, 1), (0, 1, 0)]
)
def test_tma_aligned_size(x, size, expected):
    assert get_tma_aligned_size(x, size) == expected


@pytest.mark.parametrize("size", [0, 3, 32])
def test_tma_aligned_size_needs_a_divisor_of_16(size):
    with pytest.raises(InvalidArgumentError, match="expected 1, 2, 4, 8 or 16"):
        get_tma_aligned_size(5, size)


@pytest.mark.parametrize("mn", [1, 2, 3, 5, 4097])
@pytest.mark.parametrize("groups", [None, 1, 3])
def test_packing_for_every_row_and_group_count(mn, groups):
    # FC-06
    shape = (mn, 3) if groups is None else (groups, mn, 3)
    sf = power_of_two_scales(*shape)
    packed = get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    pitch = 4 * math.ceil(mn / 4)
    assert packed.shape == (*shape[:-1], 1)
    assert packed.stride() == ((1, pitch) if groups is None else (pitch, 1, pitch))
    assert torch.equal(packed, packed_plainly(sf, torch.int32))


def test_float_layout_is_not_copied_twice():
    sf = torch.rand(2, 5, 3)
    laid_out = get_mn_major_tma_aligned_tensor(sf)
    assert torch.equal(laid_out, sf)
    assert laid_out.stride() == (24, 1, 8)
    assert get_mn_major_tma_aligned_tensor(laid_out) is laid_out
    with pytest.raises(InvalidArgumentError, match=r"sf is torch\.int32 of shape \(2, 2\), expected torch\.float32"):
        get_mn_major_tma_aligned_tensor(torch.zeros(2, 2, dtype=torch.int32))


def test_psum_example_of_the_contract():
    sf = torch.ones(384, 2)
    sf[100:128] = math.nan
    sf[250:] = -3.0
    layout = torch.tensor([100, 250], dtype=torch.int32)
    packed = get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, layout)
    expected = torch.zeros(384, 1, dtype=torch.int32)
    expected[0:100] = expected[128:250] = 0x7F7F
    assert torch.equal(packed, expected)
    with pytest.raises(InvalidArgumentError, match=r"must be contiguous"):
        get_mn_major_tma_aligned_packed_ue8m0_tensor(sf.t().contiguous().t(), layout)
    with pytest.raises(InvalidArgumentError, match=r"psum_layout is torch\.int64"):
        get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, layout.long())


@pytest.mark.parametrize("mn", [4096, 4097])
@pytest.mark.parametrize("k", [128, 7168, 7296])
@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("gran_k", [32, 128])
@pytest.mark.parametrize("is_mn_major", [False, True])
def test_transform_per_row_scales(mn, k, groups, gran_k, is_mn_major):
    sf = power_of_two_scales(*(() if groups is None else (groups,)), mn, k // gran_k)
    source = sf.transpose(-1, -2).contiguous().transpose(-1, -2) if is_mn_major else sf
    result = transform_sf(source, mn, k, (1, gran_k), groups, target=INT32)
    pitch, words = 4 * math.ceil(mn / 4), math.ceil(k / gran_k / 4)
    assert result.stride()[-2:] == (1, pitch)
    assert groups is None or result.stride(0) == pitch * words
    assert torch.equal(result, packed_plainly(sf, torch.int32))
    assert transform_sf(result, mn, k, (1, gran_k), groups, target=INT32) is result
    result = transform_sf(source, mn, k, (1, 1, gran_k), groups, True, target=INT16)
    assert torch.equal(result, packed_plainly(sf.repeat_interleave(gran_k // 32, -1), torch.int16))
    assert result.stride()[-2:] == (1, mn)
    assert transform_sf(result, mn, k, (1, 32), groups, target=INT16) is result
    if gran_k == 128:
        result = transform_sf(source, mn, k, (1, 1, 128), groups, True, target=FP32)
        assert torch.equal(result, sf)
        assert result.stride()[-2:] == (1, pitch)


def test_transform_block_scales():
    sf = power_of_two_scales(3, 5, 2)
    assert transform_sf(sf, 576, 256, (1, 128, 128), 3, False, target=FP32) is sf
    columns = sf.transpose(1, 2).contiguous().transpose(1, 2)
    assert transform_sf(columns, 576, 256, (128, 128), 3, target=FP32) is columns
    rows = sf.repeat_interleave(128, 1)[:, :576]
    assert torch.equal(transform_sf(sf, 576, 256, (128, 128), 3, target=INT32), packed_plainly(rows, torch.int32))
    fine = rows.repeat_interleave(4, -1)
    assert torch.equal(
        transform_sf(sf, 576, 256, (1, 128, 128), 3, False, target=INT16), packed_plainly(fine, torch.int16)
    )
    with pytest.raises(InvalidArgumentError, match=r"strides \(20, 4, 2\)"):
        transform_sf(sf.repeat_interleave(2, -1)[..., ::2], 576, 256, (128, 128), 3, target=FP32)


def test_disabled_cast_keeps_floats():
    sf = torch.rand(6, 2)
    for target in ScaleFormat:
        result = transform_sf(sf, 6, 256, (1, 128), disable_ue8m0_cast=True, target=target)
        assert torch.equal(result, sf)
        assert result.stride() == (1, 8)
    with pytest.raises(InvalidArgumentError, match="float32 scales per 1x32 block, expected float32 scales per 1x128"):
        transform_sf(torch.ones(6, 8), 6, 256, (1, 32), disable_ue8m0_cast=True, target=INT32)


@pytest.mark.parametrize(
    ("dtype", "columns", "recipe", "target"),
    [
        (torch.int32, 2, (1, 32), FP32),
        (torch.int16, 4, (1, 32), FP32),
        (torch.float32, 8, (1, 32), FP32),
        (torch.int16, 4, (1, 32), INT32),
        (torch.float32, 4, (1, 64), INT32),
        (torch.float32, 4, (1, 64), INT16),
        (torch.float32, 8, (256, 32), INT16),
    ],
)
def test_other_combinations_are_refused_and_point_at_the_converter(dtype, columns, recipe, target):
    sf = torch.ones(math.ceil(6 / recipe[0]), columns, dtype=dtype)
    with pytest.raises(InvalidArgumentError, match=r"expected .* kernel\.\n.*convert_scales"):
        transform_sf(sf, 6, 256, recipe, target=target)


def test_recipe_forms():
    sf = torch.ones(6, 2)
    for recipe, is_sfa in [((1, 1, 128), None), ((1, 128), True), ((128,), None)]:
        with pytest.raises(InvalidArgumentError, match=r"expected \(gran_m, gran_n, gran_k\) with is_sfa"):
            transform_sf(sf, 6, 256, recipe, is_sfa=is_sfa, target=INT32)
    layout = torch.tensor([6], dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match="psum_layout is given for a B scale"):
        transform_sf(sf, 6, 256, (1, 1, 128), is_sfa=False, psum_layout=layout, target=INT32)


def test_a_scale_that_is_no_power_of_two_is_refused_by_name():
    sf = torch.full((128, 1), 1.25)
    with pytest.raises(InvalidArgumentError, match=r"transform_sf_into_required_layout: sf\[0, 0\] = 1\.25"):
        transform_sf(sf, 128, 128, (1, 128), target=INT32)


def grouped(sf, layout, ks, gran_k=128, alignment=128, psum=False):
    return get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
        sf, torch.tensor(layout, dtype=torch.int32), ks, gran_k, alignment, psum
    )


def test_k_grouped_packing():
    ks = [128, 256, 640]
    sf = power_of_two_scales(8, 12)
    expected = torch.cat([packed_plainly(part.t(), torch.int32).t() for part in sf.split([1, 2, 5])])
    assert torch.equal(grouped(sf, ks, ks), expected)
    ends = [100, 256 + 200, 512 + 600]  # aligned to 256: 2, 2 and 6 rows of 128, compact 1, 2 and 5
    compact = grouped(sf, ends, [100, 200, 600], alignment=256, psum=True)
    assert torch.equal(compact, expected)
    padded = power_of_two_scales(2 + 2 + 6, 12)
    expected = torch.cat([packed_plainly(part.t(), torch.int32).t() for part in padded.split([2, 2, 6])])
    assert torch.equal(grouped(padded, ends, [256, 256, 768], alignment=256, psum=True), expected)
    for unknown in (None, []):
        bound = grouped(padded, ends, unknown, alignment=256, psum=True)
        assert bound.shape == ((10 + 9) // 4, 12)
        assert torch.equal(bound[:4], expected)
    assert grouped(torch.ones(0, 12), [0, 0], [0, 0]).shape == (0, 12)
    assert torch.equal(
        grouped(sf[:3], [128, 0, 256], [128, 0, 256]),
        torch.cat([packed_plainly(p.t(), torch.int32).t() for p in sf[:3].split([1, 2])]),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sf": torch.ones(8, 6)}, "mn a multiple of 4"),
        ({"sf": torch.ones(4, 8).t()}, "expected contiguous"),
        ({"layout": [0] * 129}, "129 groups"),
        ({"gran_k": 64}, "gran_k is 64"),
        ({"alignment": 32}, "k_alignment is 32"),
        ({"ks": None}, "ks_cpu is None"),
        ({"ks": [100, 284, 640]}, "sf has shape|expected multiples"),
        ({"ks": [128, 384, 512]}, "expected the sizes in ks_cpu"),
        ({"sf": torch.ones(9, 4)}, "sf has 9 rows, expected 8"),
        ({"sf": torch.ones(7, 4)}, "at least 8 rows"),
    ],
)
def test_k_grouped_refusals(change, message):
    arguments = {"sf": torch.ones(8, 4), "layout": [128, 256, 640], "ks": [128, 256, 640], **change}
    with pytest.raises(InvalidArgumentError, match=message):
        grouped(**arguments)


def test_k_grouped_ks_must_fit_the_layout():
    with pytest.raises(InvalidArgumentError, match=r"ks_cpu is \[256\], but grouped_layout holds groups of \[100\]"):
        grouped(torch.ones(1, 4), [100], [256], psum=True)


@pytest.mark.parametrize("gran_mn", [1, 4])
@pytest.mark.parametrize("gran_k", [32, 128])
def test_k_grouped_ascend_layout(gran_mn, gran_k):
    mn, k = 10, 1024
    sf = torch.full((math.ceil(mn / gran_mn), k // gran_k), math.nan)
    spans = [(0, 100), (256, 444)]
    for start, end in spans:
        sf[:, start // gran_k : math.ceil(end / gran_k)] = power_of_two_scales(
            sf.shape[0], math.ceil((end - start) / gran_k)
        )
    rows = sf.repeat_interleave(gran_mn, 0)[:mn].repeat_interleave(gran_k // 32, 1)
    expected = torch.zeros(mn, k // 32, dtype=torch.uint8)
    for start, end in spans:
        blocks = slice(start // 32, math.ceil(end / 32))
        expected[:, blocks] = (torch.frexp(rows[:, blocks]).exponent + 126).to(torch.uint8)
    layout = torch.tensor([100, 256, 444, 512], dtype=torch.int32)
    result = transform_k_grouped_sf(sf, mn, k, (gran_mn, 1, gran_k), True, layout)
    assert result.stride() == (1, mn)
    assert torch.equal(result, expected.view(torch.int16))
    again = transform_k_grouped_sf(result, mn, k, (1, 1, 32), True, layout)
    assert torch.equal(again, result)


@pytest.mark.parametrize(("gran_k", "alignment"), [(32, 128), (128, 256)])
def test_k_grouped_ascend_layout_of_int32_words(gran_k, alignment):
    """Words at the positions of the data, and with gran_k 128 every group starting a new one; spare words last."""
    mn, k = 12, 1024
    layout = torch.tensor([100, alignment, alignment + 444, 900], dtype=torch.int32)
    groups = k_groups(None, layout, gran_k=gran_k, alignment=alignment, use_psum_layout=True)
    sf = power_of_two_scales(k // gran_k, mn)
    expected = transform_k_grouped_sf(sf.T, mn, k, (1, 1, gran_k), True, layout, alignment=alignment)
    rows = torch.cat(
        [
            sf[start // gran_k : start // gran_k + count]
            for start, count in zip(groups.starts, groups.row_counts, strict=True)
        ]
    )
    words = convert_k_grouped_scales(rows, groups, INT32, min_rows=k // (4 * gran_k))
    result = transform_k_grouped_sf(words.T, mn, k, (1, 1, gran_k), True, layout, alignment=alignment)
    assert result.stride() == (1, mn)
    assert torch.equal(result, expected)
    if gran_k == 128:
        with pytest.raises(InvalidArgumentError, match=rf"expected gran_mn 1 and \(12, at least {groups.num_words}\)"):
            transform_k_grouped_sf(words[: groups.num_words - 1].T, mn, k, (1, 1, 128), True, layout)
        with pytest.raises(InvalidArgumentError, match="per 4x128 block, expected gran_mn 1"):
            transform_k_grouped_sf(words.T, mn, k, (4, 1, 128), True, layout)


def test_k_grouped_ascend_layout_is_not_read_from_another_device():
    """Only the backend's own conversions see it; tensors without data stand in for a device's."""
    ends, seen = torch.empty(3, dtype=torch.int32, device="meta"), []

    def convert(scales, groups, psum_layout, alignment, name):
        seen.append((groups, psum_layout))
        return scales.data

    def place(k_first, gran_k, groups):
        seen.append((groups, ends))
        return Scales(k_first, INT16, 1, 32, 4, 512)

    transform_k_grouped_sf(torch.empty(4, 16, device="meta"), 4, 512, (1, 1, 32), True, ends, convert=convert)
    words = torch.empty(4, 2, dtype=torch.int32, device="meta")
    transform_k_grouped_sf(words, 4, 512, (1, 1, 128), True, ends, place=place)
    assert [groups for groups, _ in seen] == [None, None]
    assert all(layout is ends for _, layout in seen)


def test_k_grouped_ascend_refusals():
    sf, layout = torch.ones(4, 16), torch.tensor([100, 500], dtype=torch.int32)
    sf[3, 9] = 1.5
    with pytest.raises(InvalidArgumentError, match=r"sf\[3, 9\] = 1\.5"):
        transform_k_grouped_sf(sf, 4, 512, (1, 1, 32), True, layout)
    with pytest.raises(InvalidArgumentError, match=r"end offsets within k=480"):
        transform_k_grouped_sf(sf[:, :15], 4, 480, (1, 1, 32), True, layout)
    with pytest.raises(InvalidArgumentError, match=r"alignment is 32, expected a multiple of 64"):
        transform_k_grouped_sf(sf, 4, 512, (1, 1, 32), True, layout, alignment=32)
