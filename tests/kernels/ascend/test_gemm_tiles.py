"""Tile sizes: every choice fits the memories, and memory use follows from the sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikernels.backends.ascend.kernels.gemm_tiles import CAPACITY, choose, cost, footprint
from unikernels.backends.ascend.programs.gemm_variant import ELEMENT_BITS, Packed, Tiles

SIZES = st.integers(1, 1 << 17)


@given(
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(sorted(ELEMENT_BITS)),
    st.sampled_from(["store", "scale", "add", "accumulate", "quantise", "round", "heads"]),
    st.sampled_from([2, 4]),
    st.sampled_from([16, 32, 64]),
    st.sampled_from([16, 64, 128]),
    st.sampled_from([None, 256]),
    st.sampled_from([("a",), ("b",), ("a", "b"), ()]),
)
def test_choice_fits_and_divides(
    m, n, k, element, epilogue, out_bytes, row_multiple, column_multiple, within, operands
):
    packed = tuple(Packed(name, True) for name in operands) if element == "fp8" else ()
    is_scaled = element in ("fp8", "fp4")
    tiles = choose(
        m, n, k, element, is_scaled, out_bytes, epilogue, 32, row_multiple, within=within,
        column_multiple=column_multiple, packed=packed,
    )  # fmt: skip
    needed = footprint(tiles, element, is_scaled, out_bytes, epilogue, packed)
    assert tiles.m % row_multiple == 0
    assert tiles.n % column_multiple == 0
    assert within is None or within % tiles.m == 0
    assert all(needed[memory] <= limit for memory, limit in CAPACITY.items()), needed
    assert tiles.k % tiles.k_step == 0
    assert tiles.k_step % 64 == 0
    assert tiles.m % 16 == tiles.n % 16 == 0


def test_footprint_counts_versions_and_scales():
    needed = footprint(Tiles(128, 256, 512, 128), "fp8", True, 2, "add")
    assert needed == {
        "L1": 2 * (384 * 512 + 384 * 8 * 2),
        "L0A": 2 * 128 * 128,
        "L0B": 2 * 256 * 128,
        "L0C": 128 * 256 * 4,
        "UB": 64 * 256 * (4 + 2 + 2),
    }


@pytest.mark.parametrize("element", ["bf16", "fp8", "fp4"])
def test_few_rows_take_short_tiles_and_large_problems_square_ones(element):
    assert choose(1, 7168, 2048, element, True, 2, "store", 32).m == 16
    assert choose(4096, 7168, 16384, element, True, 2, "store", 32).m >= 128


def test_more_cores_never_cost_more():
    tiles = Tiles(128, 256, 512, 128)
    costs = [cost(tiles, 4096, 4096, 4096, "fp8", cores) for cores in (1, 2, 8, 20, 32)]
    assert costs == sorted(costs, reverse=True)
