"""What a user may pass as scales, and what the refusals say."""

from __future__ import annotations

import pytest
import torch

import unikernels
from unikernels.errors import ArgumentTypeError, InvalidArgumentError
from unikernels.scale_layouts import (
    ScaleFormat,
    Scales,
    convert_scales,
    decode_scales,
    format_of,
    normalize_scales,
    scale_exponents,
)


def check(tensor, mn, k, gran_mn, gran_k, **options):
    options = {"name": "sfb", "function": "fp8_gemm_nt"} | options
    return normalize_scales(tensor, mn=mn, k=k, gran_mn=gran_mn, gran_k=gran_k, **options)


def test_formats_are_told_by_dtype():
    assert format_of(torch.float32) is ScaleFormat.FP32
    assert format_of(torch.int32) is ScaleFormat.UE8M0X4_INT32
    assert format_of(torch.int16) is ScaleFormat.UE8M0X2_INT16
    assert format_of(torch.float16) is None
    assert [f.per_word for f in ScaleFormat] == [1, 4, 2]


def test_scales_cannot_be_changed():
    scales = Scales(torch.ones(2, 1), ScaleFormat.FP32, 1, 128, 2, 128)
    with pytest.raises(AttributeError):
        scales.mn = 3  # type: ignore[misc]
    assert (scales.num_mn_blocks, scales.num_k_blocks, scales.num_words) == (2, 1, 1)


@pytest.mark.parametrize(
    ("dtype", "words", "scale_format"),
    [
        (torch.float32, 5, ScaleFormat.FP32),
        (torch.int32, 2, ScaleFormat.UE8M0X4_INT32),
        (torch.int16, 3, ScaleFormat.UE8M0X2_INT16),
    ],
)
@pytest.mark.parametrize("groups", [None, 0, 3])
def test_the_right_shape_is_taken_as_it_is(dtype, words, scale_format, groups):
    leading = () if groups is None else (groups,)
    tensor = torch.zeros((words, 6, *leading), dtype=dtype).permute(*range(2, 2 + len(leading)), 1, 0)
    scales = check(tensor, 6, 640, 1, 128, num_groups=groups)
    assert scales.data is tensor
    assert (scales.format, scales.gran_mn, scales.gran_k, scales.mn, scales.k) == (scale_format, 1, 128, 6, 640)


@pytest.mark.parametrize("padding", [0, 1, 127, 255])
@pytest.mark.parametrize("as_e8m0", [False, True])
@pytest.mark.parametrize("is_strided", [False, True])
def test_bytes_in_flat_and_in_pair_form_mean_the_same(padding, as_e8m0, is_strided):
    # FC-09: K = 96, scales 1, 2, 4; the fourth byte is padding.
    pairs = torch.tensor([[[127, 128], [129, padding]]] * 4, dtype=torch.uint8)
    if is_strided:
        pairs = pairs.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    flat = pairs.flatten(1)[:, :3]
    for tensor in (pairs, flat):
        scales = check(tensor.view(torch.float8_e8m0fnu) if as_e8m0 else tensor, 4, 96, 1, 32, name="sfa")
        assert decode_scales(scales).tolist() == [[1.0, 2.0, 4.0]] * 4
        canonical = convert_scales(scales, ScaleFormat.UE8M0X2_INT16)
        assert canonical.data.tolist() == [[0x807F - 0x10000, 129]] * 4
        assert canonical.data.stride() == (1, 4)


def test_grouped_bytes():
    flat = torch.arange(2 * 3 * 4, dtype=torch.uint8).reshape(2, 3, 4)
    for tensor in (flat, flat.reshape(2, 3, 2, 2)):
        assert torch.equal(scale_exponents(check(tensor, 3, 128, 1, 32, num_groups=2)), flat)
    odd = flat[..., :3]
    assert torch.equal(scale_exponents(check(odd, 3, 96, 1, 32, num_groups=2)), odd)


def test_bytes_that_are_words_already_are_not_moved():
    wide = torch.arange(4 * 12, dtype=torch.uint8).reshape(4, 12)
    for flat, is_in_place in ((wide[:, 2:6], True), (wide[:, 1:5], False), (wide[:, :8:2], False)):
        data = check(flat, 4, 128, 1, 32).data
        assert (data.data_ptr() == flat.data_ptr()) == is_in_place
        assert data.contiguous().view(torch.uint8).tolist() == flat.tolist()


def test_any_other_shape_of_bytes_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"has shape \(4, 4\), expected \(4, 3\) or \(4, 2, 2\)"):
        check(torch.zeros(4, 4, dtype=torch.uint8), 4, 96, 1, 32)
    with pytest.raises(InvalidArgumentError, match=r"has shape \(4, 2, 3\)"):
        check(torch.zeros(4, 2, 3, dtype=torch.uint8), 4, 96, 1, 32)


def test_wrong_granularity_points_at_the_recipe():
    # FC-08: FP4 weights with one scale per 32 columns, default recipe.
    with pytest.raises(
        InvalidArgumentError,
        match=r"^fp8_gemm_nt: sfb has shape \(128, 8\), expected \(1, 2\): one scale per 128x128 block of a 128x256 "
        r"matrix.*\n.*recipe_b=\(1, 32\)",
    ):
        check(torch.ones(128, 8), 128, 256, 128, 128)
    assert check(torch.ones(128, 8), 128, 256, 1, 32).num_k_blocks == 8


@pytest.mark.parametrize(
    ("form", "hint"),
    [
        ("per_operand", r"recipe_b=\(1, 32\)"),
        ("joint", r"recipe=\(gran_m, 1, 32\)"),
        ("along_k", r"recipe=\(1, 1, 32\)"),
        ("single", r"recipe=\(1, 32\)"),
        ("fixed", r"Quantise with gran_k=128 and pass the scales unchanged\.$"),
    ],
)
def test_a_hint_proposes_only_arguments_the_function_has(form, hint):
    with pytest.raises(InvalidArgumentError, match=hint):
        check(torch.ones(128, 8), 128, 256, 1, 128, recipe_form=form)


def test_functions_with_one_recipe_hear_of_that_one():
    b = torch.ones(2, 128, 256).to(torch.float8_e4m3fn)
    with pytest.raises(InvalidArgumentError, match=r"^fp8_einsum: sfb(.|\n)*with recipe=\(gran_m, 1, 32\)"):
        unikernels.fp8_einsum(
            "bhr,hdr->bhd",
            (torch.ones(3, 2, 256).to(torch.float8_e4m3fn), torch.ones(3, 2, 2)),
            (b, torch.ones(2, 128, 8)),
            torch.empty(3, 2, 128, dtype=torch.bfloat16),
            recipe=(1, 128, 128),
        )
    rows = torch.ones(256, 64).to(torch.float8_e4m3fn)
    words = torch.full((1, 64), 0x7F7F, dtype=torch.int16)  # one scale per 128 elements
    with pytest.raises(InvalidArgumentError, match=r"^k_grouped_fp8_gemm_tn_contiguous: (.|\n)*recipe=\(1, 1, 128\)"):
        unikernels.k_grouped_fp8_gemm_tn_contiguous(
            (rows, words), (rows, words), torch.zeros(1, 64, 64), [256], torch.tensor([256], dtype=torch.int32),
            recipe=(1, 1, 32),
        )  # fmt: skip


def test_a_missing_row_of_a_partial_block_is_counted():
    # FC-10
    with pytest.raises(InvalidArgumentError, match=r"shape \(4, 2\), expected \(5, 2\)(.|\n)*5 rows are needed"):
        check(torch.ones(4, 2), 576, 256, 128, 128)
    assert check(torch.ones(5, 2), 576, 256, 128, 128).num_mn_blocks == 5


def test_packed_scales_per_row_point_at_the_recipe():
    packed = torch.zeros(256, 2, dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match=r"4 exponents per int32 word(.|\n)*recipe_b=\(1, 128\)"):
        check(packed, 256, 1024, 128, 128)


def test_exchanged_dimensions_are_recognised():
    with pytest.raises(InvalidArgumentError, match=r"sfb\.transpose\(-1, -2\)"):
        check(torch.ones(2, 7), 7, 256, 1, 128)


@pytest.mark.parametrize("shape", [(), (7,), (7, 3), (1, 7, 2)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(InvalidArgumentError, match=r"expected \(7, 2\).*\n.*gran_k=128"):
        check(torch.ones(shape), 7, 256, 1, 128)


def test_group_count_must_fit():
    with pytest.raises(InvalidArgumentError, match=r"shape \(2, 7, 2\), expected \(3, 7, 2\).*3 groups"):
        check(torch.ones(2, 7, 2), 7, 256, 1, 128, num_groups=3)


def test_other_dtypes_and_other_objects_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"sfb has dtype torch\.float16, expected scales in torch\.float32"):
        check(torch.ones(7, 2, dtype=torch.float16), 7, 256, 1, 128)
    with pytest.raises(ArgumentTypeError, match=r"sfb is a list, expected a tensor"):
        check([1.0], 7, 256, 1, 128)
