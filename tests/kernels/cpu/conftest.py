"""Random operands of the native kernels: any kind, storage order, scale format, granularity and row pitch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unikernels.backends.cpu import _native
from unikernels.operations import Operand
from unikernels.scale_layouts import ScaleFormat, Scales

MakeOperand = Callable[..., Operand]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", _native.isa_variants())


def _payload(generator: torch.Generator, kind: str, mn: int, k: int) -> Tensor:
    """Stored elements, contiguous along k; fp4 packs along k."""
    if kind == "bf16":
        return torch.randn((mn, k), generator=generator).bfloat16()
    if kind == "fp32":
        return torch.randn((mn, k), generator=generator)
    if kind == "fp4":
        return torch.randint(0, 256, (mn, -(-k // 2)), generator=generator, dtype=torch.uint8).view(torch.int8)
    codes = torch.randint(0, 256, (mn, k), generator=generator, dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x11
    return codes.view(torch.float8_e4m3fn)


def _with_pitch(data: Tensor, padding: int) -> Tensor:
    wide = torch.zeros(
        (data.shape[0], data.shape[1] + padding), dtype=torch.uint8 if data.itemsize == 1 else data.dtype
    )
    wide = wide.view(data.dtype)
    wide[:, : data.shape[1]] = data
    return wide[:, : data.shape[1]]


@pytest.fixture
def make_operand() -> MakeOperand:
    generator = torch.Generator().manual_seed(7)

    def make(
        kind: str,
        mn: int,
        k: int,
        scale_format: ScaleFormat | None = None,
        gran_mn: int = 1,
        gran_k: int = 32,
        *,
        k_major: bool = True,
        padding: int = 0,
        exponents: tuple[int, int] = (110, 140),
        row_major_scales: bool = False,
    ) -> Operand:
        data = _payload(generator, kind, *((mn, k) if k_major else (k, mn)))
        data = _with_pitch(data, padding)
        operand = Operand(data if k_major else data.mT, kind, mn, k, k_major)
        if scale_format is None:
            return operand
        rows, blocks = -(-mn // gran_mn), -(-k // gran_k)
        words = -(-blocks // scale_format.per_word)
        if scale_format is ScaleFormat.FP32:
            stored = torch.randn((rows, blocks), generator=generator)
        else:
            shape = (rows, words * scale_format.per_word)
            stored = torch.randint(*exponents, shape, generator=generator, dtype=torch.uint8).view(scale_format.dtype)
        if not row_major_scales:
            stored = stored.mT.contiguous().mT
        operand.scales = Scales(stored, scale_format, gran_mn, gran_k, mn, k)
        return operand

    return make
