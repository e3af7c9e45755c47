"""Ascend kernel tests run in the simulator; they are left out where it cannot run, with the backend's own reason."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.backends.ascend.kernels import gemm_form
from unikernels.backends.ascend.kernels.gemm_tiles import candidates
from unikernels.backends.ascend.programs.gemm_variant import ELEMENT_BITS, Tiles
from unikernels.backends.ascend.runtime.kernel import Kernel
from unikernels.backends.ascend.runtime.simulated import SimulatedExecutor
from unikernels.operations.gemm import E2M1_VALUES
from unikernels.utils import transpose_packed_fp4

#: E2M1 codes of -3 to 3.
_CODES = torch.tensor([E2M1_VALUES.index(float(value)) for value in range(-3, 4)], dtype=torch.uint8)


@pytest.fixture
def ascend():
    """The ascend backend, selected, hazard checks on."""
    reason = _registry.available_backends().get("ascend", "it is not installed")
    if reason is not None:
        pytest.skip(f"backend 'ascend' cannot run here: {reason}")
    with uk.use_backend("ascend"):
        yield _registry.backend("ascend")


@pytest.fixture
def launched(monkeypatch) -> list[Kernel]:
    """The kernels the simulator runs, in order, those that run again included; a test may empty it."""
    kernels: list[Kernel] = []
    run = SimulatedExecutor.run
    monkeypatch.setattr(
        SimulatedExecutor, "run", lambda self, kernel, *given: kernels.append(kernel) or run(self, kernel, *given)
    )
    return kernels


class _Recorder:
    """An executor of four cores that keeps what it is given, as (variant, arguments), and runs nothing."""

    def __init__(self) -> None:
        self.launched = []

    def num_cores(self) -> int:
        return 4

    def run(self, kernel, *arguments) -> None:
        self.launched.append((kernel.variant, arguments))


@pytest.fixture
def recorder() -> _Recorder:
    """An executor for tensors without data."""
    return _Recorder()


@pytest.fixture
def force_tiles(monkeypatch):
    """A function (m, n, bytes along K) that makes GEMMs take these tiles, as if the table of tuned ones named them.

    Tiles must be among those that host code may choose. K is left whole.
    """

    def force(m: int, n: int, depth: int) -> None:
        def tuned(form, sizes):
            bits = ELEMENT_BITS[form.element]
            tiles = Tiles(m, n, depth * 8 // bits, 128 * 8 // bits)
            assert tiles in candidates(form), f"{tiles} is never chosen for {form}"
            return tiles

        uk.use_deterministic_algorithms(True)  # parts of a divided K would look for tiles of their own
        monkeypatch.setattr(gemm_form, "tuned_tiles", tuned)

    return force


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
    codes = _CODES[values.long() + 3]
    data = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int8)
    return (data if k_major else transpose_packed_fp4(data).mT), words, scaled


@pytest.fixture
def quantised():
    """A function (values, kind, k_major, generator) -> (data, int16 scales, float32 values of both)."""
    return _quantised
