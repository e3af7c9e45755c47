"""torch on a machine without an NPU, as code written for one expects it: "npu" means the CPU, torch.npu answers.

Only torch is replaced here, and only for the time of a ``with`` block; kernels are compiled and run elsewhere.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .rates import rate_values

if TYPE_CHECKING:
    from .device import SimulatedDevice

_REAL_DEVICE = torch.device
_HBM_BYTES = 144 << 30  # of the part whose published rows the timing model is compared with
_L2_BYTES = 128 << 20
_AI_CORES = int(rate_values()["ai_cores"])


def _is_npu(device: Any) -> bool:
    return isinstance(device, str) and device.split(":")[0] == "npu"


def _to_cpu(value: Any) -> Any:
    return "cpu" if _is_npu(value) else value


def _device_to_cpu(value: Any) -> Any:
    """The same for what is certainly a device: a number names an accelerator, and there is none but ours."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return "cpu" if number and not torch.cuda.is_available() else _to_cpu(value)


class _NpuMeansCpu(TorchFunctionMode):
    """Replaces the device "npu" in every torch call by "cpu"."""

    def __torch_function__(self, func: Callable[..., Any], types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {k: _device_to_cpu(v) if k == "device" else _to_cpu(v) for k, v in (kwargs or {}).items()}
        return func(*(_to_cpu(a) for a in args), **kwargs)


class _DeviceType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _REAL_DEVICE)

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if args and _is_npu(args[0]):
            return _REAL_DEVICE("cpu")
        if len(args) == 1 and not kwargs:
            return _REAL_DEVICE(_device_to_cpu(args[0]))
        return _REAL_DEVICE(*args, **{k: _to_cpu(v) for k, v in kwargs.items()})


class _Device(metaclass=_DeviceType):
    """Stands for torch.device: "npu" and "npu:0" name the CPU."""


class _Stream:
    npu_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def synchronize(self) -> None:
        """Everything has already run."""

    wait_stream = wait_event = record_event = lambda self, *args: None


def _event_class(session: SimulatedDevice) -> type:
    class Event:
        """Marks a place in the list of launched kernels; times between two events are predicted."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._position = len(session.reports)

        def record(self, *args: Any) -> None:
            """Now."""
            self._position = len(session.reports)

        def synchronize(self) -> None:
            """Everything has already run."""

        def wait(self, *args: Any) -> None:
            """Everything has already run."""

        def query(self) -> bool:
            """True: everything has already run."""
            return True

        def elapsed_time(self, other: Event) -> float:
            """Predicted milliseconds of the kernels launched between the two events."""
            return sum(report.time_us for report in session.reports[self._position : other._position]) / 1e3

    return Event


def _properties(*args: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        name="Ascend950 (simulated)",
        total_memory=_HBM_BYTES,
        L2_cache_size=_L2_BYTES,
        cube_core_num=_AI_CORES,
        vector_core_num=2 * _AI_CORES,
        multi_processor_count=_AI_CORES,
    )


def _npu_module(session: SimulatedDevice) -> types.ModuleType:
    module = types.ModuleType("torch.npu")

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    members: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *a: _properties().name,
        "get_device_properties": _properties,
        "current_stream": lambda *a: _Stream(),
        "default_stream": lambda *a: _Stream(),
        "Event": _event_class(session),
        "Stream": _Stream,
        "device": lambda *a: contextlib.nullcontext(),
        "stream": lambda *a: contextlib.nullcontext(),
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "memory_allocated": lambda *a: 0,
        "max_memory_allocated": lambda *a: 0,
        "memory_reserved": lambda *a: 0,
        "mem_get_info": lambda *a: (_HBM_BYTES, _HBM_BYTES),
        "config": types.SimpleNamespace(allow_internal_format=False),
    }
    for name in (
        "synchronize", "set_device", "set_stream", "empty_cache", "init", "reset_peak_memory_stats", "set_compile_mode",
    ):  # fmt: skip
        members[name] = nothing
    module.__dict__.update(members)
    return module


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for the time of the block; it is removed again if it did not exist."""
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
def _npu_means_cpu() -> Iterator[None]:
    """In this thread and those started during the block; torch keeps modes per thread."""
    original = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with _NpuMeansCpu():
            original(self)

    with _NpuMeansCpu(), patched(threading.Thread, "run", run):
        yield


@contextlib.contextmanager
def npu_in_torch(session: SimulatedDevice) -> Iterator[None]:
    """torch as code for an Ascend device expects it, for the time of the block."""
    npu = _npu_module(session)
    torch_npu = types.ModuleType("torch_npu")
    torch_npu.__dict__["npu"] = npu
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(torch, "npu", npu))
        stack.enter_context(patched(torch, "device", _Device))
        stack.enter_context(patched(torch.Tensor, "npu", lambda self, *args, **kwargs: self))
        stack.enter_context(patched(torch.Tensor, "is_npu", True))
        if not torch.cuda.is_available():  # TileLang's comparisons call it whatever the device is
            stack.enter_context(patched(torch.cuda, "synchronize", lambda *args, **kwargs: None))
        stack.enter_context(_npu_means_cpu())
        known = {name: sys.modules.get(name) for name in ("torch_npu", "torch.npu")}
        sys.modules["torch_npu"], sys.modules["torch.npu"] = torch_npu, npu
        try:
            yield
        finally:
            for name, module in known.items():
                if module is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = module
