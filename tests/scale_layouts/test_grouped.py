"""K-grouped scales: every form, plain and prefix-sum groups, compact and padded rows."""

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
    convert_k_grouped_scales,
    get_mn_major_tma_aligned_tensor,
    k_grouped_exponents,
    k_grouped_scales,
    k_groups,
)

FP32, INT32, INT16 = ScaleFormat.FP32, ScaleFormat.UE8M0X4_INT32, ScaleFormat.UE8M0X2_INT16
any_examples = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def align(x: int, alignment: int) -> int:
    return math.ceil(x / alignment) * alignment


def psum_ends(sizes: list[int], alignment: int) -> list[int]:
    ends: list[int] = []
    for size in sizes:
        ends.append(align(ends[-1] if ends else 0, alignment) + size)
    return ends


def random_rows(seed: int, counts: list[int], mn: int) -> list[list[list[int]]]:
    """Return exponents per group, row (K block) and column."""
    generator = random.Random(seed)
    return [[[generator.randint(0, 254) for _ in range(mn)] for _ in range(count)] for count in counts]


def k_first(oracle, groups: list[list[list[int]]], mn: int) -> torch.Tensor:
    rows = [row for group in groups for row in group]
    return oracle.floats(rows).reshape(len(rows), mn)


def packed_rows(oracle, group: list[list[int]], per_word: int, mn: int) -> list[list[int]]:
    """Pack each column along K, then put words K first again."""
    columns = [oracle.words_of_row([row[n] for row in group], per_word) for n in range(mn)]
    return [[column[w] for column in columns] for w in range(math.ceil(len(group) / per_word))]


group_sizes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8]), min_size=1, max_size=5)


@any_examples
@given(st.integers(0, 10**6), group_sizes, st.sampled_from([1, 4, 131]), st.sampled_from([32, 128]))
def test_plain_groups_in_all_forms(packer, oracle, seed, blocks, mn, gran_k):
    ks = [count * gran_k for count in blocks]
    exponents = random_rows(seed, blocks, mn)
    sf = k_first(oracle, exponents, mn)
    groups = k_groups(ks, gran_k=gran_k, sf=sf)
    assert groups.row_counts == tuple(blocks)
    words = convert_k_grouped_scales(sf, groups, INT32)
    assert words.tolist() == [row for group in exponents for row in packed_rows(oracle, group, 4, mn)]
    fine = [[row for row in group for _ in range(gran_k // 32)] for group in exponents]
    every = [row for group in fine for row in group]
    pairs = convert_k_grouped_scales(sf, groups, INT16)
    assert pairs.tolist() == packed_rows(oracle, every, 2, mn)
    for form in (sf, words):
        assert [group.tolist() for group in k_grouped_exponents(form, groups)] == exponents
        assert convert_k_grouped_scales(form, groups, INT16).tolist() == pairs.tolist()
        assert torch.equal(convert_k_grouped_scales(form, groups, FP32), sf)
        assert [group.tolist() for group in k_grouped_scales(form, groups)] == [
            k_first(oracle, [group], mn).tolist() for group in exponents
        ]
    fine_groups = k_groups(ks, gran_k=32, sf=pairs)
    assert [group.tolist() for group in k_grouped_exponents(pairs, fine_groups)] == fine
    assert convert_k_grouped_scales(pairs, fine_groups, INT32).tolist() == [
        row for group in fine for row in packed_rows(oracle, group, 4, mn)
    ]


@any_examples
@given(
    st.integers(0, 10**6),
    st.lists(st.sampled_from([0, 1, 31, 32, 33, 200, 256, 300]), min_size=1, max_size=5),
    st.sampled_from([32, 128]),
    st.sampled_from([128, 256]),
    st.booleans(),
)
def test_prefix_sum_groups_in_all_forms(packer, oracle, seed, sizes, gran_k, alignment, is_compact):
    mn = 8
    layout = torch.tensor(psum_ends(sizes, alignment), dtype=torch.int32)
    own = [math.ceil(size / gran_k) for size in sizes]
    counts = own if is_compact else [align(size, alignment) // gran_k for size in sizes]
    exponents = random_rows(seed, counts, mn)
    sf = k_first(oracle, exponents, mn)
    groups = k_groups(None, layout, gran_k=gran_k, alignment=alignment, use_psum_layout=True, sf=sf)
    assert groups.sizes == tuple(sizes)
    assert groups.row_counts == tuple(counts)
    own_exponents = [group[:count] for group, count in zip(exponents, own, strict=True)]
    words = convert_k_grouped_scales(sf, groups, INT32)
    assert words.tolist() == [row for group in exponents for row in packed_rows(oracle, group, 4, mn)]
    pairs = convert_k_grouped_scales(words, groups, INT16)
    assert torch.equal(pairs, convert_k_grouped_scales(sf, groups, INT16))
    plane = [[0] * mn for _ in range(groups.k // 32)]
    for start, size, group in zip(groups.starts, sizes, own_exponents, strict=True):
        for block in range(math.ceil(size / 32)):
            plane[start // 32 + block] = group[block * 32 // gran_k]
    assert pairs.tolist() == packed_rows(oracle, plane, 2, mn)
    for form in (sf, words):
        assert [group.tolist() for group in k_grouped_exponents(form, groups)] == own_exponents
        assert torch.equal(convert_k_grouped_scales(form, groups, FP32), sf)
    if gran_k == 32:
        assert [group.tolist() for group in k_grouped_exponents(pairs, groups)] == own_exponents
        padded = [group + [[0] * mn] * (count - len(group)) for group, count in zip(own_exponents, counts, strict=True)]
        assert convert_k_grouped_scales(pairs, groups, INT32).tolist() == [
            row for group in padded for row in packed_rows(oracle, group, 4, mn)
        ]
        assert torch.equal(convert_k_grouped_scales(pairs, groups, FP32), k_first(oracle, padded, mn))


def test_example_of_the_contract(packer):
    sf = torch.exp2(torch.arange(8.0)).reshape(8, 1).expand(8, 4).contiguous()
    groups = k_groups([128, 256, 640], gran_k=128, sf=sf)
    assert (groups.row_counts, groups.word_counts) == ((1, 2, 5), (1, 1, 2))
    words = convert_k_grouped_scales(sf, groups, INT32)[:, 0]
    assert words.tolist() == [0x7F, 0x8180, 0x85848382 - 2**32, 0x86]
    fine = k_groups([128, 256, 640], gran_k=32)
    assert (fine.row_counts, fine.word_counts) == ((4, 8, 20), (1, 2, 5))


def test_sm90_form_is_the_transposed_view_made_mn_major():
    sf = torch.rand(7, 6)
    nt = get_mn_major_tma_aligned_tensor(sf.t())
    assert torch.equal(nt, sf.t())
    assert nt.stride() == (1, 8)


def test_a_bad_scale_is_named_by_its_place_in_the_tensor(packer):
    sf = torch.ones(8, 12)
    sf[6, 5] = 1.5
    sf[7, 11] = 3.0
    groups = k_groups([128, 256, 640], gran_k=128, sf=sf)
    for scale_format in (INT32, INT16):
        with pytest.raises(InvalidArgumentError, match=r"sfa\[6, 5\] = 1\.5"):
            convert_k_grouped_scales(sf, groups, scale_format, name="sfa")
    with pytest.raises(InvalidArgumentError, match=r"sfa\[6, 5\] = 1\.5"):
        k_grouped_exponents(sf, groups, name="sfa")


def test_padding_rows_are_not_looked_at_when_only_own_scales_are_wanted(packer):
    layout = torch.tensor([100, 300], dtype=torch.int32)
    sf = torch.full((12, 4), math.nan)
    groups = k_groups(None, layout, gran_k=32, alignment=128, use_psum_layout=True, sf=sf)
    assert (groups.starts, groups.sizes, groups.row_starts) == ((0, 128), (100, 172), (0, 4))
    sf[0:4] = 1.0
    sf[4:10] = 2.0
    assert [group.unique().tolist() for group in k_grouped_exponents(sf, groups)] == [[127], [128]]
    assert convert_k_grouped_scales(sf, groups, INT16).shape == (6, 4)


def test_an_end_inside_the_gap_before_a_group_makes_it_empty():
    layout = torch.tensor([100, 100, 300], dtype=torch.int32)
    groups = k_groups(None, layout, gran_k=32, alignment=128, use_psum_layout=True)
    assert (groups.starts, groups.sizes) == ((0, 128, 128), (100, 0, 172))


def test_refusals():
    with pytest.raises(InvalidArgumentError, match="ks_cpu is None, expected the list of group sizes"):
        k_groups(None, gran_k=32)
    with pytest.raises(InvalidArgumentError, match=r"ks_cpu is \[32, -1\]"):
        k_groups([32, -1], gran_k=32)
    with pytest.raises(InvalidArgumentError, match="grouped_layout is missing"):
        k_groups(None, gran_k=32, use_psum_layout=True)
    with pytest.raises(InvalidArgumentError, match=r"grouped_layout is \[256, 128\], expected end offsets that never"):
        k_groups(None, torch.tensor([256, 128]), gran_k=32, use_psum_layout=True)
    with pytest.raises(InvalidArgumentError, match=r"sfa has shape \(3, 4\), expected .* at least 4 rows of float32"):
        k_groups([128], gran_k=32, sf=torch.ones(3, 4), name="sfa")
    with pytest.raises(InvalidArgumentError, match="at least 2 rows of ue8m0x2-int16"):
        k_groups([128], gran_k=32, sf=torch.ones(1, 4, dtype=torch.int16))
    groups = k_groups([128], gran_k=128)
    with pytest.raises(InvalidArgumentError, match="cannot be read from them"):
        k_grouped_exponents(torch.ones(2, 4, dtype=torch.int16), groups)
    with pytest.raises(InvalidArgumentError, match="cannot be stored as int16 scales"):
        convert_k_grouped_scales(torch.ones(4, 4), k_groups([48, 48], gran_k=48), INT16)


def test_compact_rows_can_be_demanded():
    layout = torch.tensor([100, 300], dtype=torch.int32)
    groups = k_groups(None, layout, gran_k=32, alignment=128, use_psum_layout=True, is_compact=True)
    assert groups.row_counts == (4, 6)
