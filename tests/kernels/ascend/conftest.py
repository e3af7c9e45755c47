"""Ascend kernel tests run in the simulator; they are left out where it cannot run, with the backend's own reason."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import _registry


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
