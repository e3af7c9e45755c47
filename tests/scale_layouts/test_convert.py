"""Conversions between the three formats against a slow oracle, for any shape, strides and granularity."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unikernels.errors import InvalidArgumentError
from unikernels.scale_layouts import (
    ScaleFormat,
    Scales,
    convert_scales,
    decode_scales,
    expand_scales,
    is_canonical,
    is_power_of_two,
    scale_exponents,
)

FP32, INT32, INT16 = ScaleFormat.FP32, ScaleFormat.UE8M0X4_INT32, ScaleFormat.UE8M0X2_INT16
PACKED = (INT32, INT16)
any_examples = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

sizes = st.sampled_from([0, 1, 2, 3, 5, 8, 31, 127, 128, 129, 131, 257])
ks = st.sampled_from([0, 1, 31, 32, 33, 64, 96, 128, 129, 160, 384, 640, 8 * 1024 + 96])
layouts = st.sampled_from(["rows", "columns", "gaps", "offset"])


def restride(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the same values in other memory."""
    if layout == "rows":
        return tensor.contiguous()
    if layout == "columns":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "gaps":
        wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 77, dtype=torch.int32).view(torch.int32)
        wide = wide.to(tensor.dtype)
        wide[..., 1::2] = tensor
        return wide[..., 1::2]
    shifted = torch.full((tensor.shape[0] + 1, *tensor.shape[1:]), 99, dtype=tensor.dtype)
    shifted[1:] = tensor
    return shifted[1:]


def random_exponents(seed: int, rows: int, blocks: int, low: int = 0) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randint(low, 254) for _ in range(blocks)] for _ in range(rows)]


def broadcast(exponents: list[list[int]], mn: int, gran_mn: int, blocks: int, repeat: int) -> list[list[int]]:
    return [[exponents[i // gran_mn][j // repeat] for j in range(blocks)] for i in range(mn)]


@any_examples
@given(st.integers(0, 10**6), sizes, ks, st.sampled_from([1, 2, 7, 128]), st.sampled_from([32, 128]), layouts, layouts)
def test_every_path_between_formats_keeps_every_exponent(packer, oracle, seed, mn, k, gran_mn, gran_k, layout, second):
    rows, blocks = math.ceil(mn / gran_mn), math.ceil(k / gran_k)
    exponents = random_exponents(seed, rows, blocks)
    data = restride(oracle.floats(exponents).reshape(rows, blocks), layout)
    source = Scales(data, FP32, gran_mn, gran_k, mn, k)
    fine = math.ceil(k / 32)
    per_row = broadcast(exponents, mn, gran_mn, blocks, 1)
    per_row_fine = broadcast(exponents, mn, gran_mn, fine, gran_k // 32)

    packed32 = convert_scales(source, INT32)
    assert packed32.data.tolist() == oracle.pack(per_row, 4)
    packed16 = convert_scales(source, INT16)
    assert packed16.data.tolist() == oracle.pack(per_row_fine, 2)
    assert (packed32.gran_mn, packed32.gran_k, packed16.gran_mn, packed16.gran_k) == (1, gran_k, 1, 32)

    for packed, expected in ((packed32, per_row), (packed16, per_row_fine)):
        assert scale_exponents(packed).tolist() == expected
        moved = Scales(restride(packed.data, second), packed.format, 1, packed.gran_k, mn, k)
        assert convert_scales(moved, packed.format).data.tolist() == packed.data.tolist()
        assert scale_exponents(convert_scales(moved, FP32)).tolist() == expected
        assert torch.equal(convert_scales(moved, FP32).data, decode_scales(packed))
    assert convert_scales(packed32, INT16).data.tolist() == packed16.data.tolist()
    assert convert_scales(packed16, INT32, gran_k=gran_k).data.tolist() == packed32.data.tolist()


@any_examples
@given(st.integers(0, 10**6), sizes, ks, st.sampled_from([32, 128]), st.sampled_from([1, 3]))
def test_canonical_strides_and_identity(packer, oracle, seed, mn, k, gran_k, groups):
    blocks = math.ceil(k / gran_k)
    data = torch.exp2(
        torch.randint(-20, 20, (groups, mn, blocks), generator=torch.Generator().manual_seed(seed)).float()
    )
    source = Scales(data, FP32, 1, gran_k, mn, k)
    for scale_format in ScaleFormat:
        result = convert_scales(source, scale_format)
        words = math.ceil(math.ceil(k / result.gran_k) / scale_format.per_word)
        pitch = mn if scale_format is INT16 else 4 * math.ceil(mn / 4)
        assert result.data.shape == (groups, mn, words)
        assert result.data.dtype == scale_format.dtype
        if mn and words:
            assert result.data.stride() == (pitch * words, 1, pitch)
        assert is_canonical(result)
        assert convert_scales(result, scale_format) is result
        assert torch.equal(decode_scales(result), expand_scales(result))
        for group in range(groups):
            alone = convert_scales(Scales(data[group], FP32, 1, gran_k, mn, k), scale_format)
            assert torch.equal(alone.data, result.data[group])


def test_padding_between_columns_is_zero(packer, oracle):
    scales = Scales(torch.ones(3, 8), FP32, 1, 32, 3, 256)
    packed = convert_scales(scales, INT32)
    ones = 0x7F7F7F7F
    assert oracle.memory(packed.data, 7) == [ones, ones, ones, 0, ones, ones, ones]


def test_a_wider_pitch_of_int32_is_canonical_and_of_int16_is_not(packer):
    wide = torch.full((2, 12), -1, dtype=torch.int32)
    wide[:, :5] = 0x7F7F7F7F
    scales = Scales(wide.t()[:5], INT32, 1, 32, 5, 256)
    assert convert_scales(scales, INT32) is scales
    odd = torch.full((2, 10), 0x7F7F7F7F, dtype=torch.int32)
    scales = Scales(odd.t()[:5], INT32, 1, 32, 5, 256)
    assert convert_scales(scales, INT32).data.stride() == (1, 8)
    half = Scales(torch.full((4, 8), 0x7F7F, dtype=torch.int16).t()[:5], INT16, 1, 32, 5, 256)
    assert convert_scales(half, INT16).data.stride() == (1, 5)


@pytest.mark.parametrize("words", [1, 2])
def test_row_major_packed_scales_behave_the_same_for_one_word_and_two(packer, words):
    # FC-05: k = 512 has one word per row, k = 1024 two.
    k = 512 * words
    row_major = torch.full((256, words), 0x7F7F7F7F, dtype=torch.int32)
    row_major[3, words - 1] = 0x7F7F7F80
    result = convert_scales(Scales(row_major, INT32, 1, 128, 256, k), INT32)
    assert result.data.stride() == (1, 256)
    assert torch.equal(result.data, row_major)
    assert decode_scales(result).sum() == 256 * 4 * words + 1


def test_one_word_per_row_needs_no_copy(packer):
    row_major = torch.full((256, 1), 0x7F7F7F7F, dtype=torch.int32)
    assert convert_scales(Scales(row_major, INT32, 1, 128, 256, 512), INT32).data.data_ptr() == row_major.data_ptr()


def test_all_bytes_round_trip_through_float32(packer, oracle):
    # FC-04, exhaustively: 0 is the subnormal 2^-127, 127 is 1, 255 is NaN and cannot come back.
    for scale_format in PACKED:
        words = torch.arange(256).to(torch.uint8).view(scale_format.dtype).reshape(1, -1)
        packed = Scales(words, scale_format, 1, 32, 1, 256 * 32)
        values = decode_scales(packed)
        expected = torch.tensor([[oracle.value_of(e) for e in range(256)]], dtype=torch.float32)
        assert torch.equal(values.view(torch.int32)[:, :255], expected.view(torch.int32)[:, :255])
        assert values[0, 255].isnan()
        floats = Scales(values[:, :255].contiguous(), FP32, 1, 32, 1, 255 * 32)
        assert is_power_of_two(floats)
        back = scale_exponents(convert_scales(floats, scale_format))
        assert back.tolist() == [list(range(255))]
        with pytest.raises(InvalidArgumentError, match=r"scales\[0, 255\] = nan"):
            scale_exponents(Scales(values, FP32, 1, 32, 1, 256 * 32))


@pytest.mark.parametrize("byte", [0, 127])
def test_bytes_of_torch_e8m0_round_trip(packer, byte):
    source = torch.full((5, 3), byte, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    scales = Scales(source.to(torch.float32), FP32, 1, 128, 5, 384)
    assert scale_exponents(convert_scales(scales, INT32)).unique().tolist() == [byte]


BAD_VALUES = [1.5, -1.0, 0.3, math.inf, -math.inf, math.nan, -0.0, 2.0**-128, 3 * 2.0**-127, 1.0000001]


@pytest.mark.parametrize("bad", BAD_VALUES)
@pytest.mark.parametrize("layout", ["rows", "columns", "gaps"])
@pytest.mark.parametrize("place", [(0, 0), (7, 5), (8, 64), (130, 69), (299, 71)])
def test_the_first_bad_scale_is_named(packer, bad, layout, place):
    data = torch.ones(300, 72)
    data[place] = bad
    data[place[0] :, 71] = bad  # later ones too
    scales = Scales(restride(data, layout), FP32, 1, 32, 300, 72 * 32)
    assert not is_power_of_two(scales)
    pattern = rf"sfa\[{place[0]}, {place[1]}\] = .*power of two.*\n.*Requantise the payload"
    for scale_format in PACKED:
        with pytest.raises(InvalidArgumentError, match=pattern):
            convert_scales(scales, scale_format, name="sfa")


def test_the_first_bad_scale_of_groups_and_blocks_is_named(packer):
    data = torch.ones(3, 5, 2)
    data[1, 4, 1] = 1.5  # FC-01: never rounded to 1 or 2
    scales = Scales(data, FP32, 128, 128, 576, 256)
    with pytest.raises(InvalidArgumentError, match=r"sfb\[1, 4, 1\] = 1\.5"):
        convert_scales(scales, INT16, name="sfb")
    with pytest.raises(InvalidArgumentError, match=r"scales\[1, 4, 1\] = 1\.5"):
        scale_exponents(scales)


def test_bad_scales_survive_float_layouts(packer):
    data = torch.tensor([[1.5, 0.3], [2.0, 7.0]])
    result = convert_scales(Scales(data, FP32, 1, 128, 2, 256), FP32)
    assert torch.equal(result.data, data)
    assert result.data.stride() == (1, 4)


def test_block_scales_stay_as_they_are_in_float_layout():
    scales = Scales(torch.full((5, 2), 1.5), FP32, 128, 128, 576, 256)
    assert convert_scales(scales, FP32) is scales


def test_a_partial_last_block_of_rows_uses_its_own_scale(packer):
    # FC-10 and the worked example of the contract: 128 rows of 1, 72 rows of 4.
    scales = Scales(torch.tensor([[1.0], [4.0]]), FP32, 128, 128, 200, 128)
    assert scale_exponents(convert_scales(scales, INT16)).tolist() == [[127] * 4] * 128 + [[129] * 4] * 72
    assert expand_scales(scales).flatten().tolist() == [1.0] * 128 + [4.0] * 72
    assert expand_scales(scales, along_k=True).shape == (200, 128)


def test_worked_example_of_the_contract(packer, oracle):
    exponents = [127, 128, 126, 129, 130]
    sf = torch.tensor([[1.0, 2.0, 0.5, 4.0, 8.0]])
    scales = Scales(sf, FP32, 1, 32, 1, 160)
    assert convert_scales(scales, INT32).data.tolist() == [[-2122416001, 130]]
    assert convert_scales(scales, INT16).data.tolist() == [[-32641, -32386, 130]]
    assert scale_exponents(scales).tolist() == [exponents]
    two_rows = Scales(torch.cat([sf, torch.ones_like(sf)]), FP32, 1, 32, 2, 160)
    memory = oracle.memory(convert_scales(two_rows, INT32).data, 6)
    assert memory == [-2122416001, 0x7F7F7F7F, 0, 0, 0x82, 0x7F]
    three_rows = Scales(torch.arange(6.0).reshape(3, 2), FP32, 1, 128, 3, 256)
    assert oracle.memory(convert_scales(three_rows, FP32).data, 7) == [0, 2, 4, 0, 1, 3, 5]


def test_merging_needs_equal_scales(packer):
    exponents = torch.tensor([[127, 127, 127, 127, 130, 130]], dtype=torch.uint8)
    fine = Scales(exponents.view(torch.int16), INT16, 1, 32, 1, 192)
    assert convert_scales(fine, INT32, gran_k=128).data.tolist() == [[0x827F]]
    assert convert_scales(convert_scales(fine, FP32), FP32, gran_k=128).data.tolist() == [[1.0, 8.0]]
    exponents[0, 5] = 131
    with pytest.raises(InvalidArgumentError, match=r"sf\[0, 5\] differs .* needs equal scales"):
        convert_scales(fine, INT32, gran_k=128)


def test_merging_reports_bad_scales_where_they_are_and_ignores_invalid_rows(packer):
    data = torch.ones(4, 8)
    data[2, 6] = 1.5
    scales = Scales(data, FP32, 1, 32, 4, 256)
    with pytest.raises(InvalidArgumentError, match=r"sf\[2, 6\] = 1\.5"):
        convert_scales(scales, INT32, gran_k=128)
    valid = torch.tensor([True, True, False, True])
    packed = convert_scales(scales, INT32, gran_k=128, valid_rows=valid)
    assert packed.data.tolist() == [[0x7F7F], [0x7F7F], [0], [0x7F7F]]


def test_unreachable_granularities_are_refused():
    scales = Scales(torch.ones(4, 4), FP32, 1, 64, 4, 256)
    with pytest.raises(InvalidArgumentError, match="ue8m0x4-int32 scales cannot have granularity 64"):
        convert_scales(scales, INT32)
    assert convert_scales(scales, INT16).data.shape == (4, 4)
    with pytest.raises(InvalidArgumentError, match="cannot have granularity 128 along K, expected 32"):
        convert_scales(scales, INT16, gran_k=128)
    with pytest.raises(InvalidArgumentError, match="granularity 48 along K cannot become granularity 32"):
        convert_scales(Scales(torch.ones(4, 2), FP32, 1, 48, 4, 96), INT16)


@any_examples
@given(st.integers(0, 10**6), st.lists(st.integers(0, 300), min_size=1, max_size=5), st.sampled_from([64, 128]))
def test_psum_gaps_are_neither_read_nor_left_undefined(packer, oracle, seed, group_sizes, alignment):
    generator, ends, valid, start = random.Random(seed), [], set(), 0
    for size in group_sizes:
        start = alignment * math.ceil((ends[-1] if ends else 0) / alignment)
        ends.append(start + size)
        valid |= set(range(start, start + size))
    mn = alignment * math.ceil(ends[-1] / alignment) + generator.choice([0, 3])
    exponents = random_exponents(seed, mn, 3)
    data = oracle.floats(exponents).reshape(mn, 3)
    garbage = torch.tensor([math.nan, -1.0, 0.3])
    for row in set(range(mn)) - valid:
        data[row] = garbage
        exponents[row] = [0, 0, 0]
    layout = torch.tensor(ends, dtype=torch.int32)
    scales = Scales(data, FP32, 1, 128, mn, 384)
    packed = convert_scales(scales, INT32, psum_layout=layout, alignment=alignment)
    assert scale_exponents(packed).tolist() == exponents
    packed = convert_scales(scales, INT16, psum_layout=layout, alignment=alignment)
    assert scale_exponents(packed)[:, ::4].tolist() == exponents
    marked = Scales(torch.full_like(packed.data, -1), INT16, 1, 32, mn, 384)  # packed gap rows become 0 as well
    converted = convert_scales(marked, INT32, psum_layout=layout, alignment=alignment)
    assert {row for row, words in enumerate(converted.data.tolist()) if words == [-1, -1, -1]} == valid
    assert converted.data.count_nonzero() == 3 * len(valid)


def test_rows_past_a_mask_are_not_read(packer):
    # FC-02: leftovers of earlier allocations behind masked_m = [3, 0].
    data = torch.ones(2, 8, 1)
    leftovers = torch.tensor([0x7FC00000, -0x40800000, 0x3E99999A, 0x7FFFFFFF, 1], dtype=torch.int32)
    data[0, 3:] = leftovers.view(torch.float32).unsqueeze(1)
    data[1] = math.nan
    packed = convert_scales(Scales(data, FP32, 1, 128, 8, 128), INT16, masked_m=torch.tensor([3, 0], dtype=torch.int32))
    expected = torch.zeros(2, 8, 4, dtype=torch.uint8)
    expected[0, :3] = 127
    assert torch.equal(scale_exponents(packed), expected)
    blocks = Scales(torch.tensor([[1.0], [math.nan]]), FP32, 4, 128, 8, 128)
    packed = convert_scales(blocks, INT32, valid_rows=torch.arange(8) < 3)
    assert packed.data.flatten().tolist() == [127] * 3 + [0] * 5


def exact_powers(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2^(e - 127) by bit pattern; ldexp would lose the subnormal 2^-127."""
    bits = torch.where(exponents == 0, 0x400000, exponents.to(torch.int32) << 23)
    return bits.to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("mn", [8192, 8192 + 96, 8192 + 5])
def test_large_inputs_use_threads_and_streamed_stores_and_stay_right(packer, mn):
    exponents = torch.randint(0, 255, (mn, 224), generator=torch.Generator().manual_seed(mn), dtype=torch.uint8)
    for gran_k, own, fine in ((32, exponents, exponents), (128, exponents[:, ::4], exponents[:, ::4])):
        fine = fine.repeat_interleave(gran_k // 32, 1)
        scales = Scales(exact_powers(own), FP32, 1, gran_k, mn, 7168)
        assert torch.equal(convert_scales(scales, INT16).data, fine.contiguous().view(torch.int16))
        assert torch.equal(convert_scales(scales, INT32).data, own.contiguous().view(torch.int32))
    data = exact_powers(exponents)
    data[8100, 3] = data[5000, 150] = 1.5
    with pytest.raises(InvalidArgumentError, match=r"sf\[5000, 150\]"):
        convert_scales(Scales(data, FP32, 1, 32, mn, 7168), INT16)
