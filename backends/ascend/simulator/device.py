"""A simulated Ascend device: code written for ``@tilelang.jit(target="ascend")`` and npu tensors runs on CPU tensors.

Replaces, for the time of a ``with`` block, TileLang's compile step and profiler (here) and what torch lacks without an
NPU (device_torch.py). How a kernel runs is not decided here; every call goes through `simulate`.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .device_bench import predicted_bench
from .device_kernel import SimulatedKernel
from .device_torch import npu_in_torch, patched
from .errors import KernelFaultError
from .report import Report

__all__ = ["SimulatedDevice", "SimulatedKernel", "simulated_device"]


class SimulatedDevice:
    """The running session: `options` go to every `simulate` call.

    `reports` collects what they returned and `faults` the hazards they raised. `on_report`, if set, is called after each
    with the report and whether it is the first of its kernel and shapes.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.reports: list[Report] = []
        self.faults: list[KernelFaultError] = []
        self.on_report: Callable[[Report, bool], None] | None = None
        self._known: dict[tuple[int, Any], tuple[Any, Report]] = {}
        self._benchmarks = threading.local()

    def record(self, report: Report, kernel: Any = None, shapes: Any = None) -> None:
        """Keep the report of one kernel call."""
        self.reports.append(report)
        first = (id(kernel), shapes) not in self._known
        self._known[id(kernel), shapes] = (kernel, report)
        running = getattr(self._benchmarks, "reports", None)
        if running is not None:
            running.append(report)
        if self.on_report is not None:
            self.on_report(report, first)

    def known_report(self, kernel: Any, shapes: Any) -> Report | None:
        """Inside `benchmark`: the report of an earlier call of the same kernel with tensors of the same shapes."""
        if getattr(self._benchmarks, "reports", None) is None:
            return None
        known = self._known.get((id(kernel), shapes))
        return known[1] if known is not None else None

    @contextlib.contextmanager
    def benchmark(self) -> Iterator[list[Report]]:
        """Collect the reports of this thread's kernel calls; kernels simulated before with the same shapes do not run."""
        outer = getattr(self._benchmarks, "reports", None)
        reports: list[Report] = []
        self._benchmarks.reports = reports
        try:
            yield reports
        finally:
            self._benchmarks.reports = outer


def _targets_ascend(target: Any) -> bool:
    if target is None or target in ("auto", "ascend", "asc"):
        return True
    if isinstance(target, dict):
        return target.get("kind") in ("ascend", "asc")
    kind = getattr(getattr(target, "kind", None), "name", "")
    return str(kind or target).startswith("ascend")


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
        stack.enter_context(patched(jit_module, "cached", cached))
        stack.enter_context(patched(cache_module, "cached", cached))
        stack.enter_context(patched(jit_module.JITImpl, "compile", compile_))
        # Decided at TileLang's import by asking for a device; without it T.device_assert traces to nothing.
        stack.enter_context(patched(importlib.import_module("tilelang.ascend.debug"), "_IS_ASCEND_AVAILABLE", True))
        try:
            yield
        finally:
            for jit in used:  # functions must not keep simulated kernels beyond the session
                simulated = [k for k, v in jit._kernel_cache.items() if isinstance(v, SimulatedKernel)]
                for key in simulated:
                    del jit._kernel_cache[key]
                jit._call_form_cache.clear()


@contextlib.contextmanager
def _tuning_forgotten() -> Iterator[None]:
    # What TileLang's tuner finds inside a session stays there: nothing is kept on disk, in memory or in its functions.
    tuner = importlib.import_module("tilelang.autotuner.tuner")
    original = tuner.AutoTuneImpl.get_tunner
    used: list[Any] = []

    def get_tunner(self: Any) -> Any:
        used.append(self)
        return original(self)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(tuner.AutoTuneImpl, "get_tunner", get_tunner))
        stack.enter_context(patched(tuner.AutoTuner, "_memory_cache", {}))
        stack.enter_context(patched(tuner.AutoTuner, "_load_result_from_disk", lambda self, key: None))
        stack.enter_context(patched(tuner.AutoTuner, "_save_result_to_disk", lambda self, key, result: None))
        try:
            yield
        finally:
            for function in used:
                cache = function._tuner_cache
                for key in [k for k, (kernel, _) in cache.items() if isinstance(kernel, SimulatedKernel)]:
                    del cache[key]


@contextlib.contextmanager
def _predicted_benchmarks(session: SimulatedDevice) -> Iterator[None]:
    bench = predicted_bench(session)
    profiler, details = importlib.import_module("tilelang.profiler"), importlib.import_module("tilelang.profiler.bench")
    devices = importlib.import_module("tilelang.utils.device")
    with contextlib.ExitStack() as stack:
        for module in (profiler, details):
            stack.enter_context(patched(module, "do_bench", bench))
        # For code that took do_bench from TileLang before the session began.
        stack.enter_context(patched(details, "_do_bench_impl", bench))
        stack.enter_context(patched(devices, "IS_NPU", True))
        yield


@contextlib.contextmanager
def simulated_device(**options: Any) -> Iterator[SimulatedDevice]:
    """Run code written for an Ascend device on this machine, unchanged.

    Inside the block ``tilelang.jit`` and ``tilelang.compile`` for the Ascend target give simulated kernels, the device
    "npu" means the CPU, ``torch.npu`` answers what such code asks, and benchmarks and events give predicted times. The
    session object lists the reports of all kernel calls.

    Args:
        options: passed to every `simulate` call (check, functional, seed, saturate, threads).

    Example::

        with simulated_device(check="on") as device:
            run_somebody_elses_ascend_test()
        print(device.reports[-1])
    """
    session = SimulatedDevice(options)
    with (
        npu_in_torch(session),
        _compile_for_the_simulator(session),
        _tuning_forgotten(),
        _predicted_benchmarks(session),
    ):
        yield session
