"""Runs kernels in the simulator, on CPU tensors, with hazard checks.

Lowered programs are kept on disk by program text and variant, so that a second process imports no TileLang.
"""

from __future__ import annotations

import functools
import importlib.metadata
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from unikernels import environment

from ..simulator import Report, prepare, simulate
from ..simulator.cache import Cache, digest
from ..simulator.launch import CompiledKernel, shared_cache
from ..simulator.lowering import Lowered, lower
from .executor import NUM_CORES
from .kernel import Kernel

#: TileLang traces and lowers one program at a time: threads would share its builder and its logging level.
_lowering = threading.Lock()
_reports: ContextVar[list[Report] | None] = ContextVar("unikernels_ascend_reports", default=None)
_is_timing_only: ContextVar[bool] = ContextVar("unikernels_ascend_timing_only", default=False)


@contextmanager
def recorded_reports() -> Iterator[list[Report]]:
    """Collect the simulator's reports of all kernels run inside the ``with`` block, in order; times in them are predicted."""
    reports: list[Report] = []
    token = _reports.set(reports)
    try:
        yield reports
    finally:
        _reports.reset(token)


@contextmanager
def timing_only() -> Iterator[None]:
    """Simulate the kernels run inside the ``with`` block without moving data: outputs stay as they are, times are predicted.

    Tensors that steer a program (group layouts) are read; all others may be uninitialised.
    """
    token = _is_timing_only.set(True)
    try:
        yield
    finally:
        _is_timing_only.reset(token)


class SimulatedExecutor:
    """The simulator as an executor; threads may share it."""

    def num_cores(self) -> int:
        """Return the cube cores of the simulated device."""
        return NUM_CORES

    def build(self, kernel: Kernel) -> None:
        """Lower `kernel` and compile it with or without hazard checks, as runs would."""
        prepared(kernel).library(check=environment.read("UNIKERNELS_SIMULATOR_CHECK") == "on", saturate=False)

    def run(self, kernel: Kernel, *arguments: Tensor | float | int) -> None:
        """Run `kernel` on CPU tensors; a hazard raises a `KernelFaultError`."""
        moves_data = not _is_timing_only.get()
        check = environment.read("UNIKERNELS_SIMULATOR_CHECK") if moves_data else "off"
        report = simulate(prepared(kernel), *arguments, check=check, functional=moves_data)
        reports = _reports.get()
        if reports is not None:
            reports.append(report)


@functools.lru_cache(maxsize=512)
def prepared(kernel: Kernel) -> CompiledKernel:
    """Return a kernel lowered and translated: from this process, from disk, or anew."""
    cache = shared_cache()
    return prepare(_lowered(kernel, cache), cache=cache)


def _lowered(kernel: Kernel, cache: Cache) -> Lowered:
    key = digest(kernel.key(), importlib.metadata.version("tilelang"), "program-1")
    stored = cache.load("program", key)
    if stored is None:
        with _lowering:
            stored = cache.load("program", key) or _lower(kernel, key, cache)
    return Lowered.from_json(stored)


def _lower(kernel: Kernel, key: str, cache: Cache) -> bytes:
    program: Any = kernel.build()
    lowered = lower(program, None, cache).to_json()
    cache.store("program", key, lowered)
    return lowered
