"""Timing functions: `bench` by the clock or device events, `bench_kineto` per kernel from torch's profiler.

Works with and without CUDA. Comparison lives in `numeric`; the benchmark suite with its cases in benchmarks/.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

import torch

from ..errors import InvalidArgumentError

#: Bytes written between runs to push operands out of the caches: more than the last level of the machines we know.
_FLUSH_BYTES_CPU = 64 << 20
_FLUSH_BYTES_CUDA = 512 << 20


class empty_suppress:  # noqa: N801 - DeepGEMM's name
    """Context manager that does nothing, for the place of `suppress_stdout_stderr`."""

    def __enter__(self) -> empty_suppress:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class suppress_stdout_stderr:  # noqa: N801 - DeepGEMM's name
    """Context manager that discards everything written to stdout and stderr, also by native code.

    File descriptors 1 and 2 point to the null device inside the block; Python's own streams are replaced as well, since
    they may not sit on those descriptors (in a notebook or under a test runner).
    """

    def __enter__(self) -> suppress_stdout_stderr:
        self._streams: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)
        for stream in self._streams:
            stream.flush()
        self._saved = [os.dup(1), os.dup(2)]
        self._null = open(os.devnull, "w")
        os.dup2(self._null.fileno(), 1)
        os.dup2(self._null.fileno(), 2)
        sys.stdout = sys.stderr = self._null
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._null.flush()
        sys.stdout, sys.stderr = self._streams
        for target, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, target)
            os.close(saved)
        self._null.close()


def _flush_caches(has_cuda: bool) -> None:
    if has_cuda:
        torch.empty(_FLUSH_BYTES_CUDA, dtype=torch.int8, device="cuda").zero_()
    else:
        torch.empty(_FLUSH_BYTES_CPU, dtype=torch.int8, device="cpu").fill_(1)


def bench(fn: Callable[[], Any], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False) -> float:
    """Return the mean seconds of one call of `fn`.

    With CUDA the time between two events around all calls, else the wall clock around them. The caches are flushed once
    after the warm-up.

    Args:
        fn: called without arguments.
        num_warmups: calls that are not timed.
        num_tests: calls that are timed, >= 1.
        high_precision: CUDA only: queue a large matrix product first, so that the launches of `fn` do not wait for
            the host. The wall clock needs no such help, so it changes nothing elsewhere.

    Raises:
        InvalidArgumentError: num_tests < 1.

    Contract: DeepGEMM 2.8.2, ``testing.bench``.
    """
    if num_tests < 1:
        raise InvalidArgumentError(f"bench: num_tests is {num_tests}, expected at least 1 timed call.")
    has_cuda = torch.cuda.is_available()
    for _ in range(num_warmups):
        fn()
    _flush_caches(has_cuda)
    if not has_cuda:
        start = time.perf_counter()
        for _ in range(num_tests):
            fn()
        return (time.perf_counter() - start) / num_tests
    torch.cuda.synchronize()
    if high_precision:
        square = torch.ones(8192, 8192, dtype=torch.float32, device="cuda")
        torch.mm(square, square)
    new_event: Any = torch.cuda.Event  # its constructor is typed or not depending on the torch build
    first, last = new_event(enable_timing=True), new_event(enable_timing=True)
    first.record()
    for _ in range(num_tests):
        fn()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / num_tests / 1e3


def _is_under_nvidia_tools() -> bool:
    return os.environ.get("DG_USE_NVIDIA_TOOLS", "") not in ("", "0")


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> float | tuple[float, ...]:
    """Return the mean seconds per launch of each named kernel, measured by torch's profiler.

    A kernel belongs to a name that is part of its own. With CUDA the kernels are device kernels; without, they are the
    profiler's CPU events: torch operators (``aten::mm``) and whatever runs under ``torch.profiler.record_function``.

    Args:
        fn: called without arguments, once untimed and `num_tests` times timed.
        kernel_names: one name, or a tuple of names.
        num_tests: timed calls, >= 1.
        suppress_kineto_output: discard what is written to stdout and stderr meanwhile.
        trace_path: where to write the timed calls as a Chrome trace.
        flush_l2: write through the caches before every call.
        with_multiple_kernels: allow a name to match several kernels (the mean is over all their launches).
        barrier: called before every timed call.

    Returns:
        a float for a str, a tuple of floats for a tuple; 0.0 where no kernel matches; 1.0 everywhere if environment
        variable DG_USE_NVIDIA_TOOLS is set (an outside profiler does the timing, `fn` still runs).

    Raises:
        InvalidArgumentError: num_tests < 1, a wrong kernel_names, or several kernels match one name without
            with_multiple_kernels.

    Contract: DeepGEMM 2.8.2, ``testing.bench_kineto``.
    """
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    if num_tests < 1 or not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"bench_kineto: num_tests={num_tests!r}, kernel_names={kernel_names!r}, expected num_tests >= 1 and a str "
            f"or a tuple of str."
        )
    has_cuda = torch.cuda.is_available()

    def run() -> None:
        for _ in range(num_tests):
            if flush_l2:
                _flush_caches(has_cuda)
            if barrier is not None:
                barrier()
            fn()
        if has_cuda:
            torch.cuda.synchronize()

    times: tuple[float, ...]
    with suppress_stdout_stderr() if suppress_kineto_output else empty_suppress():
        fn()
        if _is_under_nvidia_tools():
            run()
            times = (1.0,) * len(names)
        else:
            launches = _profile(run, has_cuda, trace_path)
            times = tuple(_mean_seconds(name, launches, with_multiple_kernels) for name in names)
    return times[0] if isinstance(kernel_names, str) else times


def _profile(run: Callable[[], None], has_cuda: bool, trace_path: str | None) -> dict[str, tuple[float, int]]:
    """Run under the profiler and return {kernel: (total microseconds, launches)}."""
    activity = torch.profiler.ProfilerActivity.CUDA if has_cuda else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profiler:
        run()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    return {
        event.key: (float(event.self_device_time_total if has_cuda else event.cpu_time_total), int(event.count))
        for event in profiler.key_averages()
    }


def _mean_seconds(name: str, launches: dict[str, tuple[float, int]], with_multiple_kernels: bool) -> float:
    matching = {kernel: launches[kernel] for kernel in launches if name in kernel}
    # Operators call each other (aten::linear, aten::addmm): an exact name is meant alone.
    if name in matching:
        matching = {name: matching[name]}
    if len(matching) > 1 and not with_multiple_kernels:
        raise InvalidArgumentError(
            f"bench_kineto: {name!r} matches {len(matching)} kernels: {', '.join(sorted(matching))}. "
            f"Give a longer name, or pass with_multiple_kernels=True for the mean over all of them."
        )
    count = sum(count for _, count in matching.values())
    return sum(total for total, _ in matching.values()) / count / 1e6 if count else 0.0
