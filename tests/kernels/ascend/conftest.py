"""Ascend kernel tests run in the simulator; they are left out where it cannot run, with the backend's own reason."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.operations.gemm import E2M1_VALUES
from unikernels.utils import transpose_packed_fp4

_CODES = {value: code for code, value in enumerate(E2M1_VALUES) if code != 8}


@pytest.fixture
def ascend():
    """The ascend backend, selected, hazard checks on."""
    reason = _registry.available_backends().get("ascend", "it is not installed")
    if reason is not None:
        pytest.skip(f"backend 'ascend' cannot run here: {reason}")
    with uk.use_backend("ascend"):
        yield _registry.backend("ascend")


@pytest.fixture
def small_integers():
    """A function that returns a [rows, columns] float32 matrix of integers from -3 to 3: products are exact."""
    generator = torch.Generator().manual_seed(1)

    def make(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(-3, 4, (rows, columns), generator=generator).float()

    return make


def _quantised(values, kind, k_major, generator):
    """Data of integers in -3..3 in a kind and major, random int16 scales, and the float32 values of both."""
    rows, k = values.shape
    exponents = torch.randint(125, 130, (rows, -(-k // 64) * 2), generator=generator).to(torch.uint8)
    exponents[:, -(-k // 32) :] = 0  # a missing last block (contract 2.4)
    scaled = values * torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)[:, :k]
    words = exponents.view(torch.int16).mT.contiguous().mT
    if kind == "fp8":
        data = values.to(torch.float8_e4m3fn)
        return (data if k_major else data.mT.contiguous().mT), words, scaled
    codes = torch.tensor([_CODES[float(x)] for x in values.flatten()], dtype=torch.uint8).view(rows, k)
    data = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int8)
    return (data if k_major else transpose_packed_fp4(data).mT), words, scaled


@pytest.fixture
def quantised():
    """A function (values, kind, k_major, generator) -> (data, int16 scales, float32 values of both)."""
    return _quantised
