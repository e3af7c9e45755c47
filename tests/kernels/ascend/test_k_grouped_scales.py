"""Scales that stand group after group along K, moved on the vector cores: the same words as the shared conversion."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.kernels.k_grouped_scales import placed_scale_words
from unikernels.backends.ascend.runtime.executor import executor_on
from unikernels.backends.ascend.runtime.simulated import recorded_reports
from unikernels.errors import InvalidArgumentError, UnsupportedOperationError
from unikernels.operations.k_grouped import KGroupLayout
from unikernels.scale_layouts import (
    ScaleFormat,
    convert_k_grouped_scales,
    k_groups,
)

INT16, INT32 = ScaleFormat.UE8M0X2_INT16, ScaleFormat.UE8M0X4_INT32
FP8 = torch.float8_e4m3fn
ALIGNMENT = 256


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def psum_layout(sizes):
    ends = []
    for size in sizes:
        ends.append(-(-(ends[-1] if ends else 0) // ALIGNMENT) * ALIGNMENT + size)
    return KGroupLayout("psum", int32(ends), ALIGNMENT)


def groups_of(layout, gran_k, is_compact=None):
    ends = layout.tensor if layout.kind == "psum" else None
    return k_groups(
        layout.tensor.tolist(),
        ends,
        gran_k=gran_k,
        alignment=layout.alignment,
        use_psum_layout=ends is not None,
        is_compact=is_compact,
    )


def random_rows(groups, mn, dtype):
    generator = torch.Generator().manual_seed(4)
    floats = torch.exp2(torch.randint(-126, 128, (groups.num_rows, mn), generator=generator).float())
    return floats if dtype is torch.float32 else convert_k_grouped_scales(floats, groups, INT32)


def expected_words(sf, groups, k):
    """The shared conversion, with the words of a tail without groups."""
    words = convert_k_grouped_scales(sf, groups, INT16)
    return torch.cat([words, words.new_zeros(-(-k // 64) - len(words), sf.shape[1])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
@pytest.mark.parametrize("is_k_first", [True, False])
def test_rows_of_groups_become_words_at_the_positions_of_the_data(ascend, dtype, is_k_first):
    """Empty and partial groups first, in the middle and last; rows with and without padding; a tail without groups."""
    executor = executor_on(torch.device("cpu"))
    for sizes, k, mn in (((0, 100, 0, 258, 64, 0), 1280, 140), ((1,), 256, 1), ((700, 33), 1100, 4)):
        layout = psum_layout(sizes)
        for gran_k in (32, 128):
            for is_compact in (True, False):
                groups = groups_of(layout, gran_k, is_compact)
                sf = random_rows(groups, mn, dtype)
                given = sf if is_k_first else sf.T.contiguous().T
                found = placed_scale_words(executor, given, gran_k, k, layout)
                assert torch.equal(found, expected_words(sf, groups, k)), (sizes, gran_k, is_compact)


def test_plain_sizes(ascend):
    executor = executor_on(torch.device("cpu"))
    layout = KGroupLayout("plain", int32([256, 0, 128, 640]), 128)
    for gran_k in (32, 128):
        groups = groups_of(layout, gran_k)
        sf = random_rows(groups, 12, torch.int32)
        spare = torch.cat([sf, sf[:3]])
        for given in (sf, spare):
            found = placed_scale_words(executor, given, gran_k, 1024, layout)
            assert torch.equal(found, expected_words(sf, groups, 1024))


def test_too_few_rows_and_other_values_than_powers_of_two_are_noticed(ascend):
    executor, layout = executor_on(torch.device("cpu")), psum_layout((100, 258))
    groups = groups_of(layout, 32, is_compact=True)
    sf = random_rows(groups, 8, torch.float32)
    assert placed_scale_words(executor, sf[:-1], 32, 768, layout) is None
    words = random_rows(groups, 8, torch.int32)
    assert placed_scale_words(executor, words[:-1], 32, 768, layout) is None
    sf[-1, 3] = 3.0
    assert placed_scale_words(executor, sf, 32, 768, layout) is None


def call(form, *, spoil=False, sizes=(100, 0, 258)):
    """D of a call with scales that stand group after group."""
    generator = torch.Generator().manual_seed(5)
    layout, k = psum_layout(sizes), 768
    gran_k = 128 if form == "int32" else 32
    groups = groups_of(layout, gran_k, is_compact=form == "compact")
    operands = []
    for mn in (20, 36):
        data = torch.randint(-3, 4, (k, mn), generator=generator).float()
        for start, size, next_start in zip(groups.starts, groups.sizes, (*groups.starts[1:], k), strict=True):
            data[start + size : next_start] = 0
        sf = torch.exp2(torch.randint(-4, 5, (groups.num_rows, mn), generator=generator).float())
        if spoil:
            sf[2, 1] = 0.75
        operands.append((data.to(FP8), convert_k_grouped_scales(sf, groups, INT32) if form == "int32" else sf))
    d = torch.empty(len(sizes), 20, 36)
    uk.k_grouped_fp8_gemm_tn_contiguous(*operands, d, None, layout.tensor, recipe=(1, 1, gran_k), use_psum_layout=True)
    return d


@pytest.mark.parametrize("form", ["compact", "int32"])
def test_calls_move_rows_on_the_vector_cores(ascend, form, monkeypatch):
    with uk.use_backend("reference"):
        uk.set_mk_alignment_for_contiguous_layout(ALIGNMENT)
        expected = call(form)

    def refuse(*arguments, **options):
        raise AssertionError("scales are moved by kernels")

    monkeypatch.setattr("unikernels.scale_layouts.place_k_grouped_scales", refuse)
    with uk.use_backend("reference"), pytest.raises(AssertionError, match="moved by kernels"):
        call(form)
    with recorded_reports() as reports:
        found = call(form)
    assert len(reports) == 5  # per operand the move and the mask of gaps, then the product
    assert torch.equal(found, expected)


def test_float32_scales_that_are_no_powers_of_two_are_refused_as_ever(ascend):
    """The rows stay float32 then, so that another backend may take the problem."""
    with pytest.raises(UnsupportedOperationError, match="float32 scales of a hold other values"):
        call("compact", spoil=True)


def test_nothing_waits_for_a_device(recorder):
    """Tensors without data stand in for an NPU's: reading a value from them fails. Not run on hardware."""
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    sf = torch.empty(9, 300, dtype=torch.int32, device="meta")
    words = placed_scale_words(recorder, sf, 128, 1024, KGroupLayout("psum", ends, 256))
    assert (words.shape, words.dtype) == ((16, 300), torch.int16)
    ((variant, arguments),) = recorder.launched
    assert (variant.source, variant.is_k_first, variant.layout, variant.num_cores) == ("int32", True, "psum", 8)
    source, layout, _, is_bad, *numbers = arguments
    assert source.shape == (9, 300)
    assert layout is ends
    assert is_bad.device.type == "meta"  # the flag stays on the device
    assert numbers == [128, 256]


def test_calls_on_the_meta_device_end_after_the_checks(ascend):
    def operand(mn):
        return torch.empty(768, mn, dtype=FP8, device="meta"), torch.empty(11, mn, device="meta")

    ends = torch.empty(2, dtype=torch.int32, device="meta")
    d = torch.empty(2, 20, 36, device="meta")
    uk.k_grouped_fp8_gemm_tn_contiguous(
        operand(20), operand(36), d, [60, 258], ends, recipe=(1, 1, 32), use_psum_layout=True
    )
    with pytest.raises(InvalidArgumentError, match=r"sfa has 11 rows .*, expected 24, or 12 without"):
        uk.k_grouped_fp8_gemm_tn_contiguous(
            operand(20), operand(36), d, [60, 300], ends, recipe=(1, 1, 32), use_psum_layout=True
        )
