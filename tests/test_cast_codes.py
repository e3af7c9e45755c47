"""E2M1 codes and UE8M0 words of unikernels.utils: exhaustive rounding, packing, both majors of FP4, error texts."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unikernels import utils
from unikernels.errors import InvalidArgumentError

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8)


# E2M1


def _neighbours(value):
    return [
        np.nextafter(np.float32(value), np.float32(-1)),
        np.float32(value),
        np.nextafter(np.float32(value), np.float32(9)),
    ]


def test_encode_fp4_rounds_every_interval_and_tie_to_nearest_even():
    """Every code, every midpoint with both float32 neighbours, both signs, against an independent implementation."""
    midpoints = [(low + high) / 2 for low, high in itertools.pairwise(E2M1)]
    values = [near for value in [*E2M1[1:], *midpoints] for near in _neighbours(value)]
    values += [-value for value in values] + [0.0, -0.0]
    x = torch.tensor(np.array(values, dtype=np.float32))
    expected = torch.tensor(np.array(values).astype(ml_dtypes.float4_e2m1fn).astype(np.float32))
    assert torch.equal(utils.decode_fp4(utils.encode_fp4(x)), expected)


def test_encode_fp4_of_every_bfloat16():
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    x = bits.view(torch.bfloat16)
    x = x[x.isfinite()]
    expected = x.float().numpy().clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert torch.equal(utils.decode_fp4(utils.encode_fp4(x)), torch.from_numpy(expected))


def test_encode_fp4_zero_has_no_sign():
    assert utils.encode_fp4(torch.tensor([-0.0, -0.25, -0.1, 0.0])).view(torch.uint8).tolist() == [0, 0]


def test_encode_fp4_saturates():
    x = torch.tensor([7.0, -100.0, torch.inf, -torch.inf])
    assert utils.decode_fp4(utils.encode_fp4(x)).tolist() == [6.0, -6.0, 6.0, -6.0]


def test_decode_fp4_all_bytes():
    packed = torch.arange(256, dtype=torch.uint8)
    signed = [*E2M1, *[-value for value in E2M1]]
    expected = [signed[code] for byte in range(256) for code in (byte & 0xF, byte >> 4)]
    decoded = utils.decode_fp4(packed)
    assert decoded.tolist() == expected
    assert not decoded[decoded == 0].signbit().any()  # code 8 is +0


def test_fp4_payload_dtypes():
    packed = torch.arange(12, dtype=torch.uint8).view(2, 6)
    expected = utils.decode_fp4(packed)
    assert torch.equal(utils.decode_fp4(packed.view(torch.int8)), expected)
    assert torch.equal(utils.decode_fp4(packed.view(torch.float4_e2m1fn_x2)), expected)
    with pytest.raises(InvalidArgumentError, match=r"decode_fp4: got dtype torch\.int32"):
        utils.decode_fp4(packed.int())


# FC-40: both majors of an FP4 operand


def test_transpose_packed_fp4_is_a_transposition():
    values = torch.tensor(E2M1)[torch.randint(0, 8, (6, 10), generator=torch.Generator().manual_seed(0))]
    packed = utils.encode_fp4(values)
    transposed = utils.transpose_packed_fp4(packed)
    assert transposed.shape == (10, 3)
    assert transposed.dtype == torch.int8
    assert transposed.is_contiguous()
    assert torch.equal(utils.decode_fp4(transposed), values.t())
    assert torch.equal(utils.transpose_packed_fp4(transposed), packed)


def test_transpose_packed_fp4_refuses_odd_rows():
    with pytest.raises(InvalidArgumentError, match=r"\(3, 4\), expected a matrix with an even number of rows"):
        utils.transpose_packed_fp4(torch.zeros(3, 4, dtype=torch.int8))


@pytest.mark.parametrize("call", [lambda x: utils.per_token_cast_to_fp4(x, True), utils.encode_fp4])
def test_fp4_refuses_odd_inner_length(call):
    with pytest.raises(InvalidArgumentError, match="even"):
        call(torch.zeros(2, 63))


# UE8M0


def test_ceil_to_ue8m0_values():
    x = torch.tensor([0.0, 1e-45, 2.0**-126, 1.0, 1.0000001, -3.0, 2.0**127, 3e38, torch.inf, torch.nan])
    top = 2.0**127
    assert utils.ceil_to_ue8m0(x).tolist() == [2.0**-126, 2.0**-126, 2.0**-126, 1.0, 2.0, 4.0, top, top, top, top]


@given(st.floats(width=32, min_value=2.0**-126, max_value=2.0**127))
def test_ceil_to_ue8m0_is_the_smallest_power_of_two_not_below(value):
    raised = utils.ceil_to_ue8m0(torch.tensor([value])).item()
    assert value <= raised
    assert raised < 2 * value
    assert np.frexp(raised)[0] == 0.5


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (utils.pack_ue8m0_to_int, utils.unpack_ue8m0_from_int),
        (utils.pack_ue8m0_to_int16, utils.unpack_ue8m0_from_int16),
    ],
)
def test_all_exponent_bytes_survive(pack, unpack):
    exponents = torch.arange(256, dtype=torch.int32)
    scales = (exponents << 23).view(torch.float32)
    packed = pack(scales)
    assert packed.view(torch.uint8).tolist() == exponents.tolist()  # first block in the lowest byte
    assert torch.equal(_bytes(unpack(packed)), _bytes(scales))


def test_contract_example_words():
    scales = torch.tensor([[1.0, 2.0, 0.5, 4.0, 8.0, 0.0]])
    assert utils.pack_ue8m0_to_int16(scales).tolist() == [[-32641, -32386, 130]]
    assert utils.pack_ue8m0_to_int(scales[:, :4]).tolist() == [[0x817E807F - (1 << 32)]]


def test_unpack_takes_any_strides():
    words = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32) << 24
    assert torch.equal(utils.unpack_ue8m0_from_int(words.t().contiguous().t()), utils.unpack_ue8m0_from_int(words))


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0)])
def test_pack_empty(shape):
    packed = utils.pack_ue8m0_to_int(torch.ones(shape))
    assert packed.shape == (shape[0], shape[1] // 4)
    assert utils.unpack_ue8m0_from_int(packed).shape == shape


@pytest.mark.parametrize("byte", [0, 127, 254, 255])
def test_scales_from_float8_e8m0fnu_pack_to_the_same_bytes(byte):
    """FC-04: byte 0 becomes a float32 subnormal, byte 255 a NaN; both must return."""
    stored = torch.full((2, 4), byte, dtype=torch.uint8)
    scales = stored.view(torch.float8_e8m0fnu).float()
    assert torch.equal(utils.pack_ue8m0_to_int(scales).view(torch.uint8), stored)
    assert torch.equal(utils.pack_ue8m0_to_int16(scales).view(torch.uint8), stored)


@pytest.mark.parametrize("bad", [1.5, -1.0, -0.0, 1e-40, 0.3])
def test_pack_names_the_first_bad_scale(bad):
    scales = torch.ones(3, 8)
    scales[1, 5] = scales[2, 0] = bad
    with pytest.raises(InvalidArgumentError, match=r"pack_ue8m0_to_int: x\[1, 5\] is .*requantize_to_ue8m0"):
        utils.pack_ue8m0_to_int(scales)
    assert utils.pack_ue8m0_to_int(torch.ones(1, 4)).item() == 0x7F7F7F7F  # usable afterwards


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: utils.pack_ue8m0_to_int(torch.ones(2, 6)),
            r"\(2, 6\), expected a last dimension that is a multiple of 4",
        ),
        (
            lambda: utils.pack_ue8m0_to_int16(torch.ones(3)),
            r"\(3,\), expected a last dimension that is a multiple of 2",
        ),
        (lambda: utils.pack_ue8m0_to_int(torch.ones(4).double()), r"dtype torch\.float64, expected torch\.float32"),
        (lambda: utils.unpack_ue8m0_from_int(torch.ones(4, dtype=torch.int16)), r"expected torch\.int32 words"),
        (lambda: utils.unpack_ue8m0_from_int16(torch.ones(4, dtype=torch.int32)), r"expected torch\.int16 words"),
    ],
)
def test_packing_errors(call, text):
    with pytest.raises(InvalidArgumentError, match=text):
        call()
