"""Timing cases of the operations table under one backend; shapes and costs come from the table, never from here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import _registry
from .errors import UnsupportedOperationError
from .operations import Case, Operation


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall time of one case, in seconds; `first` includes compiling and first-touch costs."""

    operation: str
    case: Case
    backend: str
    first: float
    median: float
    minimum: float
    num_runs: int

    @property
    def tflops(self) -> float:
        """Floating-point rate of the median run, in 10^12 per second."""
        return self.case.cost.flops / self.median / 1e12

    @property
    def gbps(self) -> float:
        """Bytes that must move over the median time, in 10^9 per second."""
        return self.case.cost.bytes / self.median / 1e9


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted performance of one problem beside a published figure; nothing here was measured by us.

    Attributes:
        operation: canonical operation.
        row: name of the published row: operand types, groups and sizes.
        time_us: predicted microseconds of all kernels of the call.
        tflops: predicted, over the problem's useful operations.
        published_tflops: the published figure.
        critical_pipe: what the model says limits the longest kernel.
    """

    operation: str
    row: str
    time_us: float
    tflops: float
    published_tflops: float
    critical_pipe: str

    @property
    def ratio(self) -> float:
        """Predicted over published rate; 1 and more is as fast."""
        return self.tflops / self.published_tflops


def measure(
    cases: Sequence[tuple[Operation, Case]], backend: str, min_runs: int = 5, budget: float = 2.0
) -> Iterator[Timing | tuple[Operation, Case, str]]:
    """Time each case: at least `min_runs` runs, more until `budget` seconds are spent.

    Inputs are rebuilt for no run: outputs are overwritten each time, caches are warm. Yields (operation, case, reason)
    for what the backend does not support.
    """
    import unikernels

    device = _registry.backend(backend).device
    for operation, case in cases:
        tensors = case.tensors(device)
        times: list[float] = []
        try:
            with _registry.use_only(backend):
                while len(times) <= min_runs or (sum(times) < budget and len(times) < 1000):
                    _synchronise(device.type)
                    start = time.perf_counter()
                    case.run(unikernels, tensors)
                    _synchronise(device.type)
                    times.append(time.perf_counter() - start)
        except UnsupportedOperationError as error:
            yield operation, case, str(error)
            continue
        first, *steady = times
        yield Timing(operation.name, case, backend, first, statistics.median(steady), min(steady), len(steady))


def _synchronise(device_type: str) -> None:
    if device_type != "cpu":
        import torch

        torch.accelerator.synchronize()
