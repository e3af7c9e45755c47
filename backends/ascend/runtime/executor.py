"""Choice of the executor that runs a kernel: the NPU through TileLang's own runtime, or the simulator on CPU tensors.

Kernels and their host code see `Executor.run` only and cannot tell which one they use.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor

from unikernels import environment
from unikernels.errors import InvalidArgumentError
from unikernels.settings import CURRENT

from .kernel import Kernel

#: Cube cores of an Ascend 950; an NPU executor asks the device.
NUM_CORES = 32
INSTALL_TILELANG = "pip install 'unikernels[ascend]'"
EXECUTORS = {
    "npu": "TileLang's runtime on torch_npu tensors (not run on hardware so far)",
    "sim": "simulator on CPU tensors; times are predicted",
}


class Executor(Protocol):
    """Runs kernels on tensors of one device type."""

    def run(self, kernel: Kernel, *arguments: Tensor | float | int) -> None:
        """Run `kernel` on its arguments in the order of its program; outputs are written in place."""

    def build(self, kernel: Kernel) -> None:
        """Do everything but run `kernel`, so that its first run finds it on disk."""

    def num_cores(self) -> int:
        """Return how many cube cores the device has."""


_collected: ContextVar[dict[Kernel, None] | None] = ContextVar("unikernels_ascend_collected", default=None)


@contextmanager
def collected_kernels() -> Iterator[dict[Kernel, None]]:
    """Collect the kernels that operations inside the ``with`` block would run, once each in order, and run none of them.

    Tensors may be uninitialised; outputs stay as they are.
    """
    kernels: dict[Kernel, None] = {}
    token = _collected.set(kernels)
    try:
        yield kernels
    finally:
        _collected.reset(token)


class _Collector:
    """Takes kernels down instead of running them."""

    def __init__(self, executor: Executor, kernels: dict[Kernel, None]) -> None:
        self.build = executor.build
        self.num_cores = executor.num_cores
        self._kernels = kernels

    def run(self, kernel: Kernel, *arguments: Tensor | float | int) -> None:
        """Take down `kernel`."""
        self._kernels[kernel] = None


def npu_present() -> bool:
    """Return whether torch_npu is installed and sees a device."""
    if importlib.util.find_spec("torch_npu") is None:
        return False
    npu = getattr(torch, "npu", None)
    return npu is not None and bool(npu.is_available())


def chosen_name() -> str:
    """Return "npu" or "sim": UNIKERNELS_ASCEND_EXECUTOR, where auto prefers an NPU that is present."""
    choice = environment.read("UNIKERNELS_ASCEND_EXECUTOR")
    if choice != "auto":
        return choice
    return "npu" if npu_present() else "sim"


def chosen_device() -> torch.device:
    """Return where tensors for the chosen executor lie."""
    return torch.device("npu" if chosen_name() == "npu" else "cpu")


def unavailable_reason() -> str | None:
    """Return None if the chosen executor can run here, else what is missing and how to get it."""
    if importlib.util.find_spec("tilelang") is None:
        return f"TileLang is not installed. Install it with: {INSTALL_TILELANG}"
    if chosen_name() == "npu":
        return _npu_unavailable_reason()
    return _simulator_unavailable_reason()


def _npu_unavailable_reason() -> str | None:
    from . import toolchain

    lacking = toolchain.missing()
    if importlib.util.find_spec("torch_npu") is None:
        lacking.insert(0, "torch_npu, which is not installed")
    elif not npu_present():
        lacking.insert(0, "a device, and torch_npu sees none (torch.npu.is_available() is False)")
    if not lacking:
        return None
    return (
        f"running on an NPU needs {'; '.join(lacking)}. Install torch_npu and CANN and source CANN's set_env.sh, or set "
        "UNIKERNELS_ASCEND_EXECUTOR=sim to use the simulator."
    )


def _simulator_unavailable_reason() -> str | None:
    try:
        from ..simulator.compiler import find_compiler
        from ..simulator.errors import CompilerNotFoundError
    except ImportError as error:
        return f"the simulator's native module is missing ({error}). Install a wheel with native code, or build with a C++ compiler."
    try:
        find_compiler()
    except CompilerNotFoundError as error:
        return str(error)
    return None


def _executor(name: str) -> Executor:
    executor, kernels = _real_executor(name), _collected.get()
    return executor if kernels is None else _Collector(executor, kernels)


@functools.cache
def _real_executor(name: str) -> Executor:
    if name == "npu":
        from .npu import NpuExecutor

        return NpuExecutor()
    from .simulated import SimulatedExecutor

    return SimulatedExecutor()


def cores_in_use(executor: Executor) -> int:
    """Return how many cube cores kernels use: all, or what `set_num_sms` allows. Each has two vector cores."""
    return CURRENT.num_sms or executor.num_cores()


def executor_on(device: torch.device) -> Executor:
    """Return the executor for tensors on a device of this backend."""
    return _executor("sim" if device.type == "cpu" else "npu")


def executor_for(tensor: Tensor) -> Executor:
    """Return the executor for tensors like `tensor`.

    Raises:
        InvalidArgumentError: the tensor lies on the device of the other executor than the one that was asked for.
    """
    name = "sim" if tensor.is_cpu else "npu"
    choice = environment.read("UNIKERNELS_ASCEND_EXECUTOR")
    if choice not in ("auto", name):
        device, wanted = tensor.device, "npu" if choice == "npu" else "cpu"
        raise InvalidArgumentError(
            f"UNIKERNELS_ASCEND_EXECUTOR={choice} runs tensors on '{wanted}', got tensors on '{device}'. Move the tensors, "
            f"or set it to auto or {name}."
        )
    return _executor(name)
