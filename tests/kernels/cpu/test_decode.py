"""Decoding: every code of every format against independent tables, all scale exponents, storage orders and tails."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

from unikernels.backends.cpu.kernels.matmul import decode
from unikernels.operations import Operand
from unikernels.operations.gemm import dequantise
from unikernels.scale_layouts import ScaleFormat, Scales
from unikernels.testing import assert_bitwise_equal

ALL_CODES = np.arange(256, dtype=np.uint8)


def exponent_words(exponents: np.ndarray, scale_format: ScaleFormat) -> torch.Tensor:
    """[rows, blocks] exponents as words; missing bytes of the last word are 0xff, which must not be read."""
    blocks = exponents.shape[1]
    padded = np.full((exponents.shape[0], -(-blocks // scale_format.per_word) * scale_format.per_word), 0xFF, np.uint8)
    padded[:, :blocks] = exponents
    return torch.from_numpy(padded).view(scale_format.dtype)


def expected_scales(exponents: np.ndarray) -> np.ndarray:
    """2^(e - 127) in float64, NaN for 255."""
    return np.where(exponents == 255, np.nan, np.exp2(exponents.astype(np.float64) - 127))


def rounded_to_float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # 448 * 2^127 is infinite in float32
        return values.astype(np.float32).astype(np.float64)


def assert_same_numbers(actual: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual.double().numpy(), expected)  # treats NaN as equal to NaN, 0.0 as to -0.0


@pytest.mark.parametrize("scale_format", [ScaleFormat.UE8M0X4_INT32, ScaleFormat.UE8M0X2_INT16])
@pytest.mark.parametrize("k_major", [True, False])
def test_every_e4m3_code_with_every_exponent(isa, scale_format, k_major):
    values = ALL_CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    exponents = np.repeat(ALL_CODES[:, None], 8, axis=1)
    codes = torch.from_numpy(np.tile(ALL_CODES, (256, 1))).view(torch.float8_e4m3fn)
    data = codes if k_major else codes.mT.contiguous().mT
    scales = Scales(exponent_words(exponents, scale_format), scale_format, 1, 32, 256, 256)
    expected = rounded_to_float32(values[None, :] * expected_scales(exponents)[:, :1])
    assert_same_numbers(decode(Operand(data, "fp8", 256, 256, k_major, scales), isa=isa), expected)
    unscaled = decode(Operand(data, "fp8", 256, 256, k_major, scales), scaled=False, isa=isa)
    assert_same_numbers(unscaled, np.tile(values, (256, 1)))


@pytest.mark.parametrize("k_major", [True, False])
def test_every_pair_of_e2m1_codes_with_every_exponent(isa, k_major):
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    pairs = np.stack([values[ALL_CODES & 15], values[ALL_CODES >> 4]], axis=1).reshape(-1)  # low nibble first
    exponents = np.repeat(ALL_CODES[:, None], 16, axis=1)
    scales = Scales(exponent_words(exponents, ScaleFormat.UE8M0X2_INT16), ScaleFormat.UE8M0X2_INT16, 1, 32, 256, 512)
    if k_major:
        operand = Operand(
            torch.from_numpy(np.tile(ALL_CODES, (256, 1))).view(torch.int8), "fp4", 256, 512, True, scales
        )
        elements = np.tile(pairs, (256, 1))
    else:
        # Stored [mn / 2, k] with unit stride along mn: column j holds the same 128 bytes, shifted by j.
        columns = (ALL_CODES[None, :128] + np.arange(512)[:, None]).astype(np.uint8)
        operand = Operand(torch.from_numpy(columns).view(torch.int8).mT, "fp4", 256, 512, False, scales)
        elements = np.stack([values[columns & 15], values[columns >> 4]], axis=2).reshape(512, 256).T
    expected = rounded_to_float32(elements * expected_scales(exponents)[:, :1])
    assert_same_numbers(decode(operand, isa=isa), expected)


def test_fp4_minus_zero_decodes_to_plus_zero(isa):
    operand = Operand(torch.full((1, 16), -0x78, dtype=torch.int8), "fp4", 1, 32, True)  # 0x88
    assert not torch.signbit(decode(operand, isa=isa)).any()


@pytest.mark.parametrize("kind", ["fp8", "fp4", "bf16", "fp32"])
@pytest.mark.parametrize("k_major", [True, False])
def test_layouts_granularities_and_tails(make_operand, isa, kind, k_major):
    forms = [
        (ScaleFormat.FP32, 128, 128),
        (ScaleFormat.FP32, 1, 16),
        (ScaleFormat.UE8M0X4_INT32, 1, 32),
        (ScaleFormat.UE8M0X2_INT16, 4, 128),
    ]
    for (mn, k), form, padding in itertools.product([(1, 2), (3, 33), (38, 130), (130, 514)], forms, [0, 16]):
        if kind == "fp4" and (k if k_major else mn) % 2:
            continue
        operand = make_operand(kind, mn, k, *form, k_major=k_major, padding=padding)
        expected = dequantise(operand, torch.float32)
        assert_bitwise_equal(decode(operand, isa=isa) + 0.0, expected + 0.0, f"{mn}x{k} {form}")
        assert_bitwise_equal(
            decode(operand, torch.bfloat16, isa=isa) + 0.0, expected.bfloat16() + 0.0, f"{mn}x{k} {form}"
        )


def test_bfloat16_rounding_is_to_nearest_even(isa):
    bits = torch.arange(0, 1 << 32, 65521, dtype=torch.int64).to(torch.int32)
    ties = (torch.arange(0, 1 << 16, dtype=torch.int64) << 16 | 0x8000).to(torch.int32)
    values = torch.cat([bits, ties]).view(torch.float32).reshape(1, -1)
    rounded = decode(Operand(values, "fp32", 1, values.shape[1], True), torch.bfloat16, isa=isa)
    expected = values.bfloat16()
    assert torch.equal(rounded.isnan(), expected.isnan())
    assert_bitwise_equal(rounded.nan_to_num(1.0), expected.nan_to_num(1.0))
