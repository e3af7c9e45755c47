"""The casts of unikernels.utils: recorded values bit for bit, edge values, shapes, and error texts."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unikernels import utils
from unikernels.errors import InvalidArgumentError

GOLDEN = load_file(Path(__file__).parent / "golden" / "casts.safetensors")
X, XB = GOLDEN["x"], GOLDEN["xb"]

RECORDED = {}
for _ue8m0 in (False, True):
    for _gran_k in (32, 128):
        _suffix = f"ue8m0={_ue8m0}.gran_k={_gran_k}"
        RECORDED[f"per_token_fp8.{_suffix}"] = lambda u=_ue8m0, g=_gran_k: utils.per_token_cast_to_fp8(X, u, g)
        RECORDED[f"per_token_fp4.{_suffix}"] = lambda u=_ue8m0, g=_gran_k: utils.per_token_cast_to_fp4(X.float(), u, g)
    _suffix = f"ue8m0={_ue8m0}.gran_k=128"
    RECORDED[f"per_channel_fp8.{_suffix}"] = lambda u=_ue8m0: utils.per_channel_cast_to_fp8(XB[:128], u)
    RECORDED[f"per_block_fp8.{_suffix}"] = lambda u=_ue8m0: utils.per_block_cast_to_fp8(XB, u)
RECORDED["per_token_fp8.packed.gran_k=32"] = lambda: utils.per_token_cast_to_fp8(X, True, 32, use_packed_ue8m0=True)
RECORDED["per_token_fp4.packed.gran_k=32"] = lambda: utils.per_token_cast_to_fp4(X.float(), True, 32, True)


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8)


# Recorded values


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_cast(name):
    data, sf = RECORDED[name]()
    expected_sf = GOLDEN[f"{name}.1"]
    assert torch.equal(_bytes(data), _bytes(GOLDEN[f"{name}.0"]))
    assert torch.equal(_bytes(sf), _bytes(expected_sf))
    assert sf.dtype == expected_sf.dtype
    assert sf.stride() == expected_sf.stride()
    assert data.is_contiguous()


def test_every_recorded_key_is_used():
    used = {"x", "xb", "fp4_codes_in", "fp4_codes_out"} | {f"{name}.{part}" for name in RECORDED for part in (0, 1)}
    assert used == set(GOLDEN)


def test_recorded_fp4_codes():
    packed = utils.encode_fp4(GOLDEN["fp4_codes_in"]).view(torch.uint8)
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten()
    assert torch.equal(codes, GOLDEN["fp4_codes_out"].view(torch.uint8))


# FC-01: scales never change without their payload


def test_requantize_keeps_the_product():
    b, sfb = utils.requantize_to_ue8m0(torch.ones(128, 128).to(torch.float8_e4m3fn), torch.tensor([[1.5]]))
    a, sfa = utils.requantize_to_ue8m0(torch.ones(1, 128).to(torch.float8_e4m3fn), torch.tensor([[1.25]]))
    assert (sfb.item(), sfa.item()) == (2.0, 2.0)
    product = (a.float() * sfa) @ (b.float() * sfb).t()
    assert torch.equal(product, torch.full((1, 128), 240.0))


def test_requantize_within_fp8_error_and_new_storage():
    x = torch.randn(70, 300, generator=torch.Generator().manual_seed(1))
    data, sf = utils.per_token_cast_to_fp8(x, use_ue8m0=False)
    new_data, new_sf = utils.requantize_to_ue8m0(data, sf)
    before, after = utils.cast_back_from_fp8(data, sf), utils.cast_back_from_fp8(new_data, new_sf)
    # E4M3 rounds to 3 mantissa bits, and below 2^-6 (times the scale) to multiples of 2^-9.
    spacing = torch.maximum(before.abs() * 2**-4, new_sf.repeat_interleave(128, 1)[:, :300] * 2**-10)
    assert ((after - before).abs() <= spacing * (1 + 1e-6)).all()
    utils.pack_ue8m0_to_int(torch.nn.functional.pad(new_sf, (0, 1), value=1.0))  # does not raise: powers of two
    assert new_data.data_ptr() != data.data_ptr()


def test_requantize_of_power_of_two_scales_changes_nothing():
    x = torch.randn(2, 200, 256, generator=torch.Generator().manual_seed(2))
    casts = [utils.per_block_cast_to_fp8(one, use_ue8m0=True) for one in x]
    data, sf = (torch.stack(part) for part in zip(*casts, strict=True))
    new_data, new_sf = utils.requantize_to_ue8m0(data, sf)
    assert torch.equal(_bytes(new_data), _bytes(data))
    assert torch.equal(new_sf, sf)


@pytest.mark.parametrize("bad", [-1.0, torch.nan, torch.inf])
def test_requantize_names_a_bad_scale(bad):
    sf = torch.ones(4, 2)
    sf[2, 1] = bad
    with pytest.raises(InvalidArgumentError, match=r"requantize_to_ue8m0: sf\[2, 1\] is .*, expected a finite scale"):
        utils.requantize_to_ue8m0(torch.zeros(4, 256).to(torch.float8_e4m3fn), sf)


def test_requantize_shape_error():
    with pytest.raises(InvalidArgumentError, match=r"sf has shape \(3, 2\) .* expected \(1, 2\) torch\.float32"):
        utils.requantize_to_ue8m0(torch.zeros(4, 256).to(torch.float8_e4m3fn), torch.ones(3, 2))


# FC-03: zero blocks


CASTS = {
    "per_token_fp8": (utils.per_token_cast_to_fp8, lambda data, sf: utils.cast_back_from_fp8(data, sf)),
    "per_token_fp4": (utils.per_token_cast_to_fp4, lambda data, sf: utils.cast_back_from_fp4(data, sf)),
    "per_block_fp8": (utils.per_block_cast_to_fp8, lambda data, sf: data.float() * sf.repeat_interleave(128, 1)),
    "per_channel_fp8": (
        lambda x, u: utils.per_channel_cast_to_fp8(x, u, gran_k=x.size(0)),
        lambda data, sf: data.float() * sf,
    ),
    "per_custom_dims_fp8": (
        lambda x, u: utils.per_custom_dims_cast_to_fp8(x, (0,), u),
        lambda data, sf: data.float() * sf[:, None],
    ),
}


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("name", CASTS)
def test_zeros_stay_zero(name, use_ue8m0):
    cast, back = CASTS[name]
    data, sf = cast(torch.zeros(2, 256), use_ue8m0)
    assert (_bytes(data) == 0).all()
    assert sf.isfinite().all()
    assert (sf > 0).all()
    assert (back(data, sf) == 0).all()


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("name", ["per_token_fp8", "per_token_fp4", "per_custom_dims_fp8"])
def test_zero_row_leaves_other_rows_alone(name, use_ue8m0):
    cast, back = CASTS[name]
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(3))
    data, sf = cast(x, use_ue8m0)
    x[1] = 0
    zeroed_data, zeroed_sf = cast(x, use_ue8m0)
    assert (back(zeroed_data, zeroed_sf)[1] == 0).all()
    for row in (0, 2):
        assert torch.equal(_bytes(zeroed_data[row]), _bytes(data[row]))
        assert torch.equal(zeroed_sf[row], sf[row])


# FC-53: scales of BF16 inputs


@pytest.mark.parametrize("amax", [448 * (1 + 2**-8), 448 * (1 + 2**-7), 3.0e38, 449.0, 1e-4])
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_scale_is_the_float32_quotient(amax, use_ue8m0):
    x = torch.zeros(5, 200, dtype=torch.bfloat16)
    x[3, 150] = -amax
    largest = np.float32(max(x[3, 150].abs().float().item(), np.float32(1e-4)))
    quotient = np.float32(largest / np.float32(448))
    if use_ue8m0:
        mantissa, exponent = np.frexp(quotient)
        quotient = np.float32(2.0 ** (exponent - (mantissa == 0.5)))
    _, sf = utils.per_token_cast_to_fp8(x, use_ue8m0)
    assert sf.shape == (5, 2)
    assert sf[3, 1].item() == quotient
    if use_ue8m0:
        _, packed = utils.per_token_cast_to_fp8(x, True, use_packed_ue8m0=True)
        assert packed.view(torch.uint8)[3].tolist() == [
            utils.pack_ue8m0_to_int(torch.full((4,), sf[3, 0].item())).view(torch.uint8)[0].item(),
            utils.pack_ue8m0_to_int(torch.full((4,), float(quotient))).view(torch.uint8)[0].item(),
            127,
            127,
        ]


# FC-54: overflow, infinity, NaN


def test_saturating_cast_to_fp8():
    x = torch.tensor([448.0, 460.0, 465.0, 480.0, 1000.0, -1000.0, torch.inf, -torch.inf, 3e38, torch.nan])
    result = utils.saturating_cast_to_fp8(x)
    assert result.float()[:-1].tolist() == [448.0] * 5 + [-448.0, 448.0, -448.0, 448.0]
    assert result[-1].float().isnan()


def test_saturating_cast_of_every_bfloat16_matches_an_independent_rounding():
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = x[x.isfinite()]
    expected = x.float().numpy().clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert torch.equal(_bytes(utils.saturating_cast_to_fp8(x)), torch.from_numpy(expected.view(np.uint8)))


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("sign", [1, -1])
def test_infinity_counts_as_the_largest_float(name, use_ue8m0, sign):
    cast, back = CASTS[name]
    x = torch.ones(2, 256)
    x[1, 7] = sign * torch.inf
    data, sf = cast(x, use_ue8m0)
    largest = x.clamp(-torch.finfo(torch.float32).max, torch.finfo(torch.float32).max)
    expected_data, expected_sf = cast(largest, use_ue8m0)
    assert torch.equal(_bytes(data), _bytes(expected_data))
    assert torch.equal(sf, expected_sf)
    assert sf.isfinite().all()
    restored = back(data, sf)
    assert not restored.isnan().any()
    assert restored[1, 7] * sign > 1e38


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("name", [name for name in CASTS if name.endswith("fp8")])
def test_nan_stays_nan_and_harms_nothing_else_in_fp8(name, use_ue8m0):
    cast, _ = CASTS[name]
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(4))
    x[0, 3] = 0
    expected_data, expected_sf = cast(x, use_ue8m0)
    x[0, 3] = torch.nan
    data, sf = cast(x, use_ue8m0)
    assert torch.equal(sf, expected_sf)
    assert data[0, 3].float().isnan()
    data[0, 3] = 0.0
    assert torch.equal(_bytes(data), _bytes(expected_data))


@pytest.mark.parametrize("packed", [False, True])
def test_nan_block_is_nan_in_fp4(packed):
    x = torch.ones(2, 256)
    x[1, 200] = torch.nan
    restored = utils.cast_back_from_fp4(*utils.per_token_cast_to_fp4(x, True, 32, packed), 32, packed)
    expected = torch.ones(2, 256)
    expected[1, 192:224] = torch.nan
    assert torch.equal(restored.isnan(), expected.isnan())
    assert torch.equal(restored.nan_to_num(0.0), expected.nan_to_num(0.0))


def test_encode_fp4_refuses_nan():
    with pytest.raises(InvalidArgumentError, match=r"encode_fp4: x\[1, 0\] is NaN"):
        utils.encode_fp4(torch.tensor([[1.0, 2.0], [torch.nan, 0.0]]))


# Shapes


@pytest.mark.parametrize("m", [0, 1, 3, 128, 130])
@pytest.mark.parametrize("n", [0, 2, 126, 128, 130, 514])
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_shapes_and_round_trip(m, n, use_ue8m0):
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(m * 1000 + n))
    blocks = -(-n // 128)
    data, sf = utils.per_token_cast_to_fp8(x, use_ue8m0)
    assert (data.shape, sf.shape, data.dtype) == ((m, n), (m, blocks), torch.float8_e4m3fn)
    # Half a unit in the last of 3 mantissa bits, or half the subnormal spacing.
    bound = torch.maximum(x.abs() * 2**-4, sf.repeat_interleave(128, 1)[:, :n] * 2**-10) * (1 + 1e-6)
    assert ((utils.cast_back_from_fp8(data, sf) - x).abs() <= bound).all()
    packed, sf4 = utils.per_token_cast_to_fp4(x, use_ue8m0)
    assert (packed.shape, sf4.shape, packed.dtype) == ((m, n // 2), (m, blocks), torch.int8)
    # The widest gap of E2M1 is 2, between 4 and 6.
    assert ((utils.cast_back_from_fp4(packed, sf4) - x).abs() <= sf4.repeat_interleave(128, 1)[:, :n] * 1.001).all()
    data, sf = utils.per_block_cast_to_fp8(x, use_ue8m0)
    assert (data.shape, sf.shape) == ((m, n), (-(-m // 128), blocks))
    if use_ue8m0:
        data, words = utils.per_token_cast_to_fp8(x, True, use_packed_ue8m0=True)
        assert (words.shape, words.dtype) == ((m, -(-blocks // 4)), torch.int32)
        assert torch.equal(
            utils.cast_back_from_fp8(data, words, use_packed_ue8m0=True),
            utils.cast_back_from_fp8(*utils.per_token_cast_to_fp8(x, True)),
        )


def test_strided_input_equals_contiguous():
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    for cast in (utils.per_token_cast_to_fp8, utils.per_block_cast_to_fp8, utils.per_token_cast_to_fp4):
        data, sf = cast(x.t(), True)
        expected_data, expected_sf = cast(x.t().contiguous(), True)
        assert torch.equal(_bytes(data), _bytes(expected_data))
        assert torch.equal(sf, expected_sf)
        assert data.is_contiguous()


def test_per_custom_dims_reduces_all_other_dims():
    x = torch.randn(3, 1, 5, 7, generator=torch.Generator().manual_seed(6))
    data, sf = utils.per_custom_dims_cast_to_fp8(x, (0, -2), False)
    assert data.shape == x.shape
    assert torch.equal(sf, x.abs().amax(dim=(1, 3)) / torch.tensor(448.0))
    data, sf = utils.per_custom_dims_cast_to_fp8(x, (0, 1, 2, 3), False)
    assert sf.shape == (3, 5, 7)  # nothing reduced, size 1 squeezed
    data, sf = utils.per_custom_dims_cast_to_fp8(x, (), True)
    assert sf.shape == ()


@pytest.mark.parametrize("dims", [(0, 0), (0, -2), (2,), (-3,)])
def test_per_custom_dims_refuses(dims):
    with pytest.raises(InvalidArgumentError, match=r"expected distinct dimensions of x with shape \(2, 4\)"):
        utils.per_custom_dims_cast_to_fp8(torch.ones(2, 4), dims, True)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: utils.per_token_cast_to_fp8(torch.ones(4), True), r"x has shape \(4,\), expected a matrix"),
        (lambda: utils.per_token_cast_to_fp8([1.0], True), "x has list, expected a matrix"),
        (
            lambda: utils.per_block_cast_to_fp8(torch.ones(2, 2, dtype=torch.int32), True),
            r"dtype torch\.int32, expected",
        ),
        (lambda: utils.per_token_cast_to_fp8(torch.ones(2, 2), True, 0), "gran_k is 0, expected a positive"),
        (lambda: utils.per_token_cast_to_fp8(torch.ones(2, 2), False, 128, True), "pass use_ue8m0=True as well"),
        (lambda: utils.per_token_cast_to_fp4(torch.ones(2, 2), False, 128, True), "pass use_ue8m0=True as well"),
        (
            lambda: utils.per_channel_cast_to_fp8(torch.ones(100, 2), True),
            "100 rows, expected a multiple of gran_k=128",
        ),
        (lambda: utils.cast_back_from_fp8(torch.ones(2, 2), torch.ones(2, 1)), r"dtype torch\.float32, expected"),
        (
            lambda: utils.cast_back_from_fp8(torch.ones(2, 256).to(torch.float8_e4m3fn), torch.ones(2, 3)),
            r"sf has shape \(2, 3\) .*expected \(2, 2\)",
        ),
        (
            lambda: utils.cast_back_from_fp4(torch.zeros(2, 128, dtype=torch.int8), torch.ones(2, 2), 128, True),
            r"expected \(2, 1\) and torch\.int32: packed",
        ),
    ],
)
def test_cast_errors(call, text):
    with pytest.raises(InvalidArgumentError, match=text):
        call()


def test_ceil_div_and_align():
    assert [utils.ceil_div(x, 128) for x in (0, 1, 128, 129)] == [0, 1, 1, 2]
    assert [utils.align(x, 128) for x in (0, 1, 128, 129)] == [0, 128, 128, 256]
    assert utils.align(524416 * 4096 + 1, 128) == 524416 * 4096 + 128


def test_rounding_is_not_biased():
    """Truncation would hide inside every tolerance: as many values must round up as down."""
    x = torch.rand(64, 1024, generator=torch.Generator().manual_seed(7)) + 0.5
    for restored in (
        utils.cast_back_from_fp8(*utils.per_token_cast_to_fp8(x, True)),
        utils.cast_back_from_fp4(*utils.per_token_cast_to_fp4(x, True)),
    ):
        share_up = (restored > x).double().mean().item()
        assert 0.4 < share_up < 0.6


def test_layout_names_are_those_of_the_library():
    import unikernels

    assert utils.layout.get_mk_alignment_for_contiguous_layout is unikernels.get_mk_alignment_for_contiguous_layout
    assert utils.get_mk_alignment_for_contiguous_layout is unikernels.get_mk_alignment_for_contiguous_layout
    assert not hasattr(utils.layout, "get_col_major_tma_aligned_tensor")
    assert not hasattr(utils, "get_col_major_tma_aligned_tensor")
