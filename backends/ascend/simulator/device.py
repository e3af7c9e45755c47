"""A simulated Ascend device: code written for ``@tilelang.jit(target="ascend")`` and npu tensors runs on CPU tensors.

Replaces, for the time of a ``with`` block, TileLang's compile step and the parts of ``torch.npu`` such code calls. How
a kernel runs is not decided here; every call goes through `simulate`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .errors import LaunchError
from .launch import allocate_outputs, prepare, simulate
from .report import Report

_REAL_DEVICE = torch.device


class SimulatedKernel:
    """What ``tilelang.compile`` returns inside `simulated_device`: called like a compiled kernel, run by `simulate`."""

    def __init__(self, prim_func: Any, out_idx: Any, pass_configs: dict[str, Any] | None, session: SimulatedDevice):
        self.prim_func = prim_func
        self.pass_configs = {str(getattr(k, "value", k)): v for k, v in (pass_configs or {}).items()}
        self._session = session
        self._compiled = prepare(prim_func, self.pass_configs)
        count = len(self._compiled.lowered.arguments)
        indices = [] if out_idx is None else [out_idx] if isinstance(out_idx, int) else list(out_idx)
        self.out_idx = [i % count for i in indices]

    @property
    def kernel_source(self) -> str:
        """The generated Ascend C."""
        return self._compiled.lowered.source

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The generated Ascend C; there is no host source."""
        return self.kernel_source

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._compiled.lowered.arguments
        if not self.out_idx or len(args) == len(arguments):
            self._session.record(simulate(self._compiled, *args, **self._session.options, **kwargs))
            return None
        values = list(args)
        outputs = allocate_outputs(arguments, values, self.out_idx)
        for index in sorted(self.out_idx):
            values.insert(index, outputs[index])
        self._session.record(simulate(self._compiled, *values, **self._session.options, **kwargs))
        results = [outputs[i] for i in self.out_idx]
        return results[0] if len(results) == 1 else results

    def get_profiler(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: time measured on this machine says nothing of the device."""
        raise LaunchError(
            "a simulated kernel has no profiler; read the predicted time from the report of a run instead"
        )


class SimulatedDevice:
    """The running session: `options` go to every `simulate` call, `reports` collects what they returned."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.reports: list[Report] = []

    def record(self, report: Report) -> None:
        """Keep the report of one kernel call."""
        self.reports.append(report)


def _is_npu(device: Any) -> bool:
    return isinstance(device, str) and device.split(":")[0] == "npu"


def _to_cpu(value: Any) -> Any:
    return "cpu" if _is_npu(value) else value


class _NpuMeansCpu(TorchFunctionMode):
    """Replaces the device "npu" in every torch call by "cpu"."""

    def __torch_function__(self, func: Callable[..., Any], types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {k: _to_cpu(v) for k, v in (kwargs or {}).items()}
        return func(*(_to_cpu(a) for a in args), **kwargs)


class _DeviceType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _REAL_DEVICE)

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if args and _is_npu(args[0]):
            return _REAL_DEVICE("cpu")
        return _REAL_DEVICE(*args, **{k: _to_cpu(v) for k, v in kwargs.items()})


class _Device(metaclass=_DeviceType):
    """Stands for torch.device: "npu" and "npu:0" name the CPU."""


class _Event:
    """A host-side event: records wall time, which says nothing of the simulated device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._time = 0.0

    def record(self, *args: Any) -> None:
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Everything has already run."""

    def elapsed_time(self, other: _Event) -> float:
        return (other._time - self._time) * 1e3


class _Stream:
    npu_stream = 0

    def synchronize(self) -> None:
        """Everything has already run."""


def _npu_module() -> types.ModuleType:
    module = types.ModuleType("torch.npu")

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    members: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *a: "Ascend950 (simulated)",
        "current_stream": lambda *a: _Stream(),
        "Event": _Event,
        "Stream": _Stream,
        "device": lambda *a: contextlib.nullcontext(),
        "stream": lambda *a: contextlib.nullcontext(),
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
    }
    for name in ("synchronize", "set_device", "empty_cache", "init", "reset_peak_memory_stats", "set_compile_mode"):
        members[name] = nothing
    module.__dict__.update(members)
    return module


def _targets_ascend(target: Any) -> bool:
    if target is None or target in ("auto", "ascend", "asc"):
        return True
    if isinstance(target, dict):
        return target.get("kind") in ("ascend", "asc")
    kind = getattr(getattr(target, "kind", None), "name", "")
    return str(kind or target).startswith("ascend")


@contextlib.contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    missing = object()
    old = getattr(owner, name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if old is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, old)


@contextlib.contextmanager
def _compile_for_the_simulator(session: SimulatedDevice) -> Iterator[None]:
    # The package also exports a function called jit, which hides the module of that name.
    cache_module, jit_module = importlib.import_module("tilelang.cache"), importlib.import_module("tilelang.jit")
    original, original_compile = jit_module.cached, jit_module.JITImpl.compile
    used: list[Any] = []

    def cached(func: Any = None, out_idx: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not _targets_ascend(kwargs.get("target")):
            return original(func, out_idx, *args, **kwargs)
        return SimulatedKernel(func, out_idx, kwargs.get("pass_configs"), session)

    def compile_(self: Any, *args: Any, **kwargs: Any) -> Any:
        used.append(self)
        return original_compile(self, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(_patched(jit_module, "cached", cached))
        stack.enter_context(_patched(cache_module, "cached", cached))
        stack.enter_context(_patched(jit_module.JITImpl, "compile", compile_))
        # Decided at TileLang's import by asking for a device; without it T.device_assert traces to nothing.
        stack.enter_context(_patched(importlib.import_module("tilelang.ascend.debug"), "_IS_ASCEND_AVAILABLE", True))
        try:
            yield
        finally:
            for jit in used:  # functions must not keep simulated kernels beyond the session
                simulated = [k for k, v in jit._kernel_cache.items() if isinstance(v, SimulatedKernel)]
                for key in simulated:
                    del jit._kernel_cache[key]
                jit._call_form_cache.clear()


@contextlib.contextmanager
def simulated_device(**options: Any) -> Iterator[SimulatedDevice]:
    """Run code written for an Ascend device on this machine, unchanged.

    Inside the block ``tilelang.jit`` and ``tilelang.compile`` for the Ascend target give simulated kernels, the device
    "npu" means the CPU, and ``torch.npu`` answers what such code asks. The session object lists the reports of all
    kernel calls.

    Args:
        options: passed to every `simulate` call (check, functional, seed, saturate, threads).

    Example::

        with simulated_device(check="on") as device:
            run_somebody_elses_ascend_test()
        print(device.reports[-1])
    """
    session = SimulatedDevice(options)
    npu = _npu_module()
    torch_npu = types.ModuleType("torch_npu")
    torch_npu.__dict__["npu"] = npu
    with contextlib.ExitStack() as stack:
        stack.enter_context(_compile_for_the_simulator(session))
        stack.enter_context(_patched(torch, "npu", npu))
        stack.enter_context(_patched(torch, "device", _Device))
        stack.enter_context(_patched(torch.Tensor, "npu", lambda self, *args, **kwargs: self))
        stack.enter_context(_patched(torch.Tensor, "is_npu", True))
        stack.enter_context(_NpuMeansCpu())
        known = {name: sys.modules.get(name) for name in ("torch_npu", "torch.npu")}
        sys.modules["torch_npu"], sys.modules["torch.npu"] = torch_npu, npu
        try:
            yield session
        finally:
            for name, module in known.items():
                if module is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = module
