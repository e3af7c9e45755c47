"""The kernel object that ``tilelang.compile`` returns inside `simulated_device`. How it runs is decided by `simulate`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .errors import KernelFaultError
from .launch import allocate_outputs, prepare, simulate

if TYPE_CHECKING:
    from .device import SimulatedDevice


class SimulatedKernel:
    """Called like a compiled kernel: outputs named by `out_idx` are allocated and returned, the others written in place."""

    def __init__(self, prim_func: Any, out_idx: Any, pass_configs: dict[str, Any] | None, session: SimulatedDevice):
        self.prim_func = prim_func
        self.pass_configs = {str(getattr(k, "value", k)): v for k, v in (pass_configs or {}).items()}
        self._session = session
        self._compiled = prepare(prim_func, self.pass_configs)
        count = len(self._compiled.lowered.arguments)
        indices = [] if out_idx is None else [out_idx] if isinstance(out_idx, int) else list(out_idx)
        self.out_idx = [i % count for i in indices]
        # Filled in by TileLang's tuner.
        self.latency: float | None = None
        self.ref_latency: float | None = None
        self.config: dict[str, Any] | None = None

    @property
    def kernel_source(self) -> str:
        """The generated Ascend C."""
        return self._compiled.lowered.source

    @property
    def host_source(self) -> str:
        """Empty: nothing is launched from a host program."""
        return ""

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The generated Ascend C; there is no host source."""
        return self.kernel_source

    def get_host_source(self) -> str:
        """Empty, as `host_source`."""
        return self.host_source

    def show_source(self, which: str = "kernel") -> None:
        """Print the generated Ascend C."""
        print(self.kernel_source)

    def print_source_code(self, which: str = "kernel", file: str | None = None) -> None:
        """Print the generated Ascend C, or write it to `file`."""
        if file is None:
            self.show_source(which)
        else:
            Path(file).write_text(self.kernel_source, encoding="utf-8")

    def export_sources(self, kernel_path: str | None = None, host_path: str | None = None) -> None:
        """Write the generated Ascend C to `kernel_path`, and an empty host source if asked for one."""
        for path, text in ((kernel_path, self.kernel_source), (host_path, self.host_source)):
            if path is not None:
                Path(path).write_text(text, encoding="utf-8")

    @property
    def params(self) -> list[Any]:
        """The arguments in the kernel's order, as TileLang describes them."""
        kind = importlib.import_module("tilelang.engine.param").KernelParam
        buffers = self.prim_func.buffer_map
        return [kind.from_buffer(buffers[p]) if p in buffers else kind.from_var(p) for p in self.prim_func.params]

    def get_profiler(self, tensor_supply_type: Any = None) -> Any:
        """TileLang's profiler on this kernel: it compares as usual, and its times are predicted ones."""
        supply = importlib.import_module("tilelang.utils.tensor").TensorSupplyType
        profiler = importlib.import_module("tilelang.profiler").Profiler
        chosen = supply.Auto if tensor_supply_type is None else tensor_supply_type
        return profiler(self.params, list(self.out_idx), chosen).with_default_adapter(self)

    def update_tuner_result(self, latency: float, config: dict[str, Any], ref_latency: float) -> SimulatedKernel:
        """Keep what TileLang's tuner found."""
        self.latency, self.config, self.ref_latency = latency, config, ref_latency
        return self

    def get_tuner_result(self) -> dict[str, Any]:
        """What `update_tuner_result` kept."""
        return {"latency": self.latency, "config": self.config, "ref_latency": self.ref_latency}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._compiled.lowered.arguments
        if not self.out_idx or len(args) == len(arguments):
            self._run(args, kwargs)
            return None
        values = list(args)
        outputs = allocate_outputs(arguments, values, self.out_idx)
        for index in sorted(self.out_idx):
            values.insert(index, outputs[index])
        if not self._run(values, kwargs):
            for tensor in outputs.values():
                tensor.view(torch.uint8).zero_()
        results = [outputs[i] for i in self.out_idx]
        return results[0] if len(results) == 1 else results

    def _run(self, values: Any, kwargs: dict[str, Any]) -> bool:
        """Simulate, unless only the time is asked for and known: then the outputs stay as they are."""
        shapes = tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in (*values, *kwargs.values()))
        known = self._session.known_report(self, shapes)
        try:
            report = known or simulate(self._compiled, *values, **self._session.options, **kwargs)
        except KernelFaultError as fault:
            self._session.faults.append(fault)
            raise
        self._session.record(report, self, shapes)
        return known is None
