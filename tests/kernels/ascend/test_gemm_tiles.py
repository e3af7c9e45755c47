"""Tile sizes: every choice fits the memories, and memory use follows from the sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikernels.backends.ascend.kernels.gemm_tiles import CAPACITY, Sizes, candidates, choose, cost, footprint
from unikernels.backends.ascend.programs.gemm_variant import ELEMENT_BITS, GemmForm, Packed, Tiles

SIZES = st.integers(1, 1 << 17)
FP8 = GemmForm("fp8", True, True, True, "bfloat16", "store", 32)


@st.composite
def forms(draw):
    """Forms that host code makes: FP4 next to another format is packed, FP4 alone is K-major, outputs fit epilogues."""
    element = draw(st.sampled_from(sorted(ELEMENT_BITS)))
    epilogue = draw(st.sampled_from(["store", "scale", "add", "accumulate", "quantise", "round", "heads"]))
    out = {"quantise": "uint8", "round": "uint16"}.get(epilogue) or draw(st.sampled_from(["bfloat16", "float32"]))
    packed = draw(st.sampled_from([("a",), ("b",), ("a", "b"), ()])) if element == "fp8" else ()
    majors = (True, True) if element == "fp4" else draw(st.tuples(st.booleans(), st.booleans()))
    return GemmForm(
        element,
        element in ("fp8", "fp4"),
        *majors,
        out,
        epilogue,
        num_cores=32,
        sfd=draw(st.sampled_from(["int16", "int32"])),
        run=draw(st.sampled_from([16, 64, 128])) if epilogue == "heads" else 0,
        packed=tuple(Packed(name, majors["ab".index(name)]) for name in packed),
    )


@given(forms(), SIZES, SIZES, SIZES, st.sampled_from([None, 256]))
def test_choice_fits_and_divides(form, m, n, k, within):
    tiles = choose(form, Sizes(m, n, k), within)
    needed = footprint(form, tiles)
    assert all(needed[memory] <= limit for memory, limit in CAPACITY.items()), needed
    assert tiles.m % 16 == tiles.n % 16 == 0
    if not (form.a_is_k_major and form.b_is_k_major):
        assert tiles.m * ELEMENT_BITS[form.element] % 256 == tiles.n * ELEMENT_BITS[form.element] % 256 == 0
    if form.epilogue == "quantise":
        assert tiles.n % {"int16": 64, "int32": 128}[form.sfd] == tiles.m % 32 == 0
    assert form.run == 0 or tiles.n % form.run == 0
    assert within is None or within % tiles.m == 0
    assert tiles.k % tiles.k_step == 0
    assert tiles.k_step % 64 == 0


def test_footprint_counts_versions_and_scales():
    needed = footprint(replace(FP8, epilogue="add"), Tiles(128, 256, 512, 128))
    assert needed == {
        "L1": 2 * (384 * 512 + 384 * 8 * 2),
        "L0A": 2 * 128 * 128,
        "L0B": 2 * 256 * 128,
        "L0C": 128 * 256 * 4,
        "UB": 64 * 256 * (4 + 2 + 2),
    }


@pytest.mark.parametrize("element", ["bf16", "fp8", "fp4"])
def test_few_rows_take_short_tiles_and_large_problems_square_ones(element):
    form = replace(FP8, element=element)
    assert choose(form, Sizes(1, 7168, 2048)).m == 16
    assert choose(form, Sizes(4096, 7168, 16384)).m >= 128


@pytest.mark.parametrize("element", ["bf16", "fp8", "fp4"])
def test_every_candidate_steps_through_k_alike(element):
    form = replace(FP8, element=element)
    (step,) = {one.k_step for one in candidates(form)}
    for m in (1, 33, 4096):
        assert choose(form, Sizes(m, 7168, 2048)).k_step == step


def test_more_cores_never_cost_more():
    costs = [
        cost(replace(FP8, num_cores=cores), Sizes(4096, 4096, 4096), Tiles(128, 256, 512, 128))
        for cores in (1, 2, 8, 20, 32)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0] / 16
