"""Offsets beyond 2^31 elements in every tensor of a product. Strides put rows far apart; untouched pages do not exist."""

from __future__ import annotations

import pytest
import torch

from unikernels.backends.cpu.kernels.matmul import decode, matmul_nt
from unikernels.operations import Operand
from unikernels.operations.gemm import dequantise
from unikernels.scale_layouts import ScaleFormat, Scales
from unikernels.testing import assert_bitwise_equal, assert_close

PITCH = 1 << 26
M, N, K = 34, 36, 96  # more than 32 rows: the last ones start past 2^31


def far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy whose rows are PITCH elements apart."""
    storage = torch.empty((tensor.shape[0] - 1) * PITCH + tensor.shape[1], dtype=tensor.dtype)
    copy = storage.as_strided(tensor.shape, (PITCH, 1))
    assert (tensor.shape[0] - 1) * PITCH > 1 << 31
    return copy.copy_(tensor)


def with_far_rows(operand: Operand) -> Operand:
    stored = operand.data if operand.is_k_major else operand.data.mT
    data = far_apart(stored.view(torch.uint8)).view(stored.dtype)
    return Operand(data if operand.is_k_major else data.mT, operand.kind, operand.mn, operand.k, operand.is_k_major)


@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_operands(make_operand, isa, kind, k_major):
    small = make_operand(kind, 66, K, k_major=k_major)
    large = with_far_rows(small)
    assert_bitwise_equal(decode(large, isa=isa), decode(small, isa=isa))
    other = make_operand("fp8", M, K)
    for left, right, plain_left, plain_right in ((large, other, small, other), (other, large, other, small)):
        out, expected = (torch.empty(left.mn, right.mn) for _ in range(2))
        matmul_nt(left, right, out, isa=isa)
        matmul_nt(plain_left, plain_right, expected, isa=isa)
        assert_bitwise_equal(out, expected)
    assert_close(expected, dequantise(other) @ dequantise(small).T, 1e-11)


@pytest.mark.parametrize("scale_format", [ScaleFormat.FP32, ScaleFormat.UE8M0X2_INT16])
@pytest.mark.parametrize("m", [2, M])
def test_scales(make_operand, isa, m, scale_format):
    a, b = make_operand("fp8", m, K), make_operand("fp8", N, K, scale_format, row_major_scales=True)
    far = Operand(b.data, "fp8", N, K, True, Scales(far_apart(b.scales.data), scale_format, 1, 32, N, K))
    out, expected = torch.empty(m, N), torch.empty(m, N)
    matmul_nt(a, far, out, isa=isa)
    matmul_nt(a, b, expected, isa=isa)
    assert_bitwise_equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_output_and_addend(make_operand, isa, dtype):
    a, b = make_operand("fp8", M, K), make_operand("fp4", N, K)
    c = torch.arange(M * N, dtype=torch.float32).reshape(M, N).to(dtype)
    out, expected = far_apart(torch.zeros(M, N, dtype=dtype)), torch.empty(M, N, dtype=dtype)
    matmul_nt(a, b, out, accumulate=far_apart(c), isa=isa)
    matmul_nt(a, b, expected, accumulate=c, isa=isa)
    assert_bitwise_equal(out.contiguous(), expected)
