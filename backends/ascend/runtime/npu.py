"""Runs kernels on an NPU: TileLang's own compiler and runtime, torch_npu tensors, torch's current stream.

Not run on hardware so far; tests follow launches through TileLang's runtime as far as AscendCL.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from .executor import NUM_CORES
from .kernel import Kernel


class NpuExecutor:
    """TileLang's runtime as an executor; threads may share it."""

    def __init__(self) -> None:
        self._compiled: dict[Kernel, Any] = {}
        self._lock = threading.Lock()

    def num_cores(self) -> int:
        """Return the cube cores of the current device."""
        properties: Any = torch.npu.get_device_properties(torch.npu.current_device())  # type: ignore[attr-defined]
        return int(getattr(properties, "cube_core_num", NUM_CORES))

    def run(self, kernel: Kernel, *arguments: Tensor | float | int) -> None:
        """Launch `kernel` on torch's current NPU stream; compiles it on first use."""
        self._kernel(kernel)(*arguments)

    def build(self, kernel: Kernel) -> None:
        """Compile `kernel` into TileLang's cache on disk."""
        self._kernel(kernel)

    def _kernel(self, kernel: Kernel) -> Any:
        compiled = self._compiled.get(kernel)
        if compiled is None:
            import tilelang

            with self._lock:  # TileLang's own cache on disk serves other processes
                compiled = self._compiled.get(kernel)
                if compiled is None:
                    compiled = self._compiled[kernel] = tilelang.compile(kernel.build(), target="ascend")
        return compiled
