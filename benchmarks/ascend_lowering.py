"""Processor time of lowering every Ascend GEMM kernel that the default parity cases need, nothing taken from disk.

One JSON line per program, slowest kernel named, and one for all.
Run: python benchmarks/ascend_lowering.py [LEVEL ...]   (of cases; default: smoke edge)
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import unikernels
from unikernels import _registry, parity
from unikernels.backends.ascend.programs.gemm_variant import GemmVariant
from unikernels.backends.ascend.runtime.executor import collected_kernels
from unikernels.backends.ascend.runtime.kernel import Kernel
from unikernels.backends.ascend.simulator.cache import Cache
from unikernels.backends.ascend.simulator.lowering import lower
from unikernels.errors import UnsupportedOperationError

TARGET_S = 3.0


def gemm_kernels(levels: Sequence[str]) -> list[Kernel]:
    """Return the kernels with a multiplication that cases of these levels need."""
    with unikernels.use_backend("ascend"), collected_kernels() as kernels:
        for operation, case in parity.select(levels=levels):
            if _registry.backend("ascend").implements(operation.name):
                try:
                    case.run(unikernels, case.tensors())
                except UnsupportedOperationError:
                    continue
    return [kernel for kernel in kernels if hasattr(kernel.variant, "gemm") or isinstance(kernel.variant, GemmVariant)]


def seconds(kernel: Kernel) -> float:
    """Return the processor time from Python function to Ascend C."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        lower(kernel.build(), None, Cache(Path(folder)))
        return time.process_time() - start


def report(name: str, times: dict[Kernel, float]) -> None:
    slowest = max(times, key=lambda kernel: times[kernel])
    line = {
        "name": name, "kernels": len(times), "median_s": round(statistics.median(times.values()), 2),
        "slowest_s": round(times[slowest], 2), "above_target": sum(t > TARGET_S for t in times.values()),
        "target_s": TARGET_S, "slowest": repr(slowest.variant),
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def main() -> None:
    """Print one line per program."""
    levels = sys.argv[1:] or ("smoke", "edge")
    kernels = gemm_kernels(levels)
    if not kernels:
        raise SystemExit(f"no GEMM case has a level of {levels}")
    seconds(kernels[0])  # the first one imports TileLang
    times = {kernel: seconds(kernel) for kernel in kernels}
    for program in dict.fromkeys(kernel.program for kernel in kernels):
        report(program, {kernel: t for kernel, t in times.items() if kernel.program == program})
    report("all", times)


if __name__ == "__main__":
    main()
