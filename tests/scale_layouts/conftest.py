"""A slow oracle for scale layouts: exponents as nested Python lists, memory addressed by hand."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from unikernels.scale_layouts import _packer, native_packing


def value_of(exponent: int) -> float:
    return math.nan if exponent == 255 else math.ldexp(1.0, exponent - 127)


def word_of(exponents: list[int], per_word: int) -> int:
    """Return the signed little-endian word of up to `per_word` exponents, missing ones being 0."""
    raw = bytes(exponents) + bytes(per_word - len(exponents))
    return struct.unpack({2: "<h", 4: "<i"}[per_word], raw)[0]


def words_of_row(exponents: list[int], per_word: int) -> list[int]:
    return [word_of(exponents[i : i + per_word], per_word) for i in range(0, len(exponents), per_word)]


def pack(exponents: list[list[int]], per_word: int) -> list[list[int]]:
    return [words_of_row(row, per_word) for row in exponents]


def memory(tensor: torch.Tensor, count: int) -> list[int | float]:
    """Return the first `count` elements of the tensor's memory from its first element on."""
    return tensor.as_strided((count,), (1,)).tolist()


def floats(exponents: list[list[int]]) -> torch.Tensor:
    return torch.tensor([[value_of(e) for e in row] for row in exponents], dtype=torch.float32)


@pytest.fixture(scope="session")
def oracle() -> SimpleNamespace:
    return SimpleNamespace(value_of=value_of, words_of_row=words_of_row, pack=pack, memory=memory, floats=floats)


@pytest.fixture(params=["native", "portable", "torch"])
def packer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test with the C++ packer, with and without vector instructions, and with other devices' torch code."""
    if request.param == "torch":
        monkeypatch.setattr(native_packing, "HAS_NATIVE_PACKER", False)
        yield request.param
        return
    assert native_packing.HAS_NATIVE_PACKER, "the native packer is not built"
    _packer.use_portable_steps(request.param == "portable")
    yield request.param
    _packer.use_portable_steps(False)
