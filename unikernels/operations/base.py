"""What a canonical operation is, and what a case of it is; no operation is defined here.

Tests, benchmarks, parity reports and capability tables iterate over these objects, so that adding an operation edits
its own family file only.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
#: Sets of cases, see `Case.levels`.
LEVELS = ("smoke", "edge", "full", "bench", "large")


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one call: floating-point operations and bytes that must move between memory and the chip."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Case:
    """One reproducible call of the public API.

    Attributes:
        id: readable and unique within its operation, for example ``fp8xfp8-nt-int32-m33-n128-k256``.
        labels: columns of a report: ``dtype``, ``layout``, ``shape`` at least.
        build: makes all tensors of the call, outputs included and prefilled, from a seeded CPU generator.
        run: performs the call on the public namespace it is given and returns the named outputs.
        tolerance: largest accepted `calc_diff` against the reference; 0 asks for equal bits.
        cost: work of the call.
        levels: sets the case belongs to: ``smoke`` (seconds, every backend), ``full``, ``edge`` (empty and unaligned
            sizes), ``bench``, ``large`` (sizes of ``bench`` that only models of time are asked about).
    """

    id: str
    labels: Mapping[str, str]
    build: Callable[[torch.Generator], Tensors]
    run: Callable[[ModuleType, Tensors], Tensors]
    tolerance: float
    cost: Cost
    levels: frozenset[str] = frozenset({"smoke"})

    def generator(self) -> torch.Generator:
        """Return a generator seeded by the case's id, so that a case is the same on every machine."""
        digest = hashlib.sha256(self.id.encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))

    def tensors(self, device: torch.device | str = "cpu") -> Tensors:
        """Build the tensors and move them to `device`, keeping their strides."""
        return {name: _move(tensor, torch.device(device)) for name, tensor in self.build(self.generator()).items()}


def cases_in(module: str, function: str = "") -> Callable[[], Sequence[Case]]:
    """Return a function that loads cases when they are asked for: importing the library must not pay for them.

    Args:
        module: module of this package, for example ``gemm_cases``.
        function: function in it; by default of the module's name.
    """

    def load() -> Sequence[Case]:
        loaded = importlib.import_module(f".{module}", __package__)
        found: Sequence[Case] = getattr(loaded, function or module)()
        return found

    return load


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device.type == device.type:
        return tensor
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return moved.copy_(tensor)


@dataclass(frozen=True, slots=True)
class Operation:
    """A canonical operation: what a backend method of the same name computes.

    Attributes:
        name: the Backend method.
        problem: the dataclass the method receives.
        reference: the definition of the operation in plain torch; it writes the problem's outputs (or returns what
            the method must return), accumulating in float32 or float64 and rounding once.
        cases: all cases of the operation.
        summary: one line for documentation.
    """

    name: str
    problem: type
    reference: Callable[[Any], Any]
    cases: Callable[[], Sequence[Case]]
    summary: str
    functions: tuple[str, ...] = field(default=())
