"""The Ascend backend: TileLang kernels on an NPU, or in the simulator on CPU tensors.

TileLang, the simulator and the kernels are imported when the first problem arrives, so that discovery costs nothing.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unikernels import environment, hookimpl
from unikernels.backend import Backend, Recipe, Shape
from unikernels.scale_layouts import KGroups, ScaleFormat, Scales, is_canonical

if TYPE_CHECKING:
    from unikernels.backend import Advance
    from unikernels.bench import Prediction
    from unikernels.operations import (
        BatchedGemmProblem,
        GatheredKGroupedGemmProblem,
        GatheredMGroupedGemmProblem,
        GemmProblem,
        GroupedGemmProblem,
        KGroupedGemmProblem,
    )
    from unikernels.operations.k_grouped import KGroupLayout
    from unikernels.operations.m_grouped import GroupLayout

#: The architecture name of Ascend 950 parts.
NPU_ARCH = 3510
#: Host side of the operations that have limits.
_MODULES = {
    "gemm": ".kernels.gemm",
    "m_grouped_gemm": ".kernels.m_grouped",
    "batched_gemm": ".kernels.batched",
    "k_grouped_gemm": ".kernels.k_grouped",
}


class AscendBackend(Backend):
    """GEMM-like operations of Ascend 950; CPU tensors run in the simulator."""

    name = "ascend"
    device_types = ("npu", "cpu")
    auto_device_types = ("npu",)
    scale_format = ScaleFormat.UE8M0X2_INT16
    mk_alignment = 256
    has_fixed_mk_alignment = True

    def unavailable_reason(self) -> str | None:
        from .runtime.executor import unavailable_reason

        return unavailable_reason()

    @property
    def device(self) -> torch.device:
        from .runtime.executor import chosen_device

        return chosen_device()

    @property
    def is_simulated(self) -> bool:
        from .runtime.executor import chosen_name

        return chosen_name() == "sim"

    def num_cores(self) -> int:
        from .runtime.executor import executor_on

        return executor_on(self.device).num_cores()

    def npu_arch(self) -> int:
        return NPU_ARCH

    def default_recipe(self, sfb_dtype: torch.dtype) -> Recipe:
        return (1, 1, 32)

    def why_not(self, operation: str, problem: Any) -> str | None:
        if operation not in _MODULES:
            return None
        reason: str | None = importlib.import_module(_MODULES[operation], __package__).why_not(problem)
        return reason

    def details(self) -> Mapping[str, str]:
        from .runtime.executor import EXECUTORS, chosen_name

        details = {"executor": EXECUTORS[chosen_name()], "tilelang": importlib.metadata.version("tilelang")}
        if self.is_simulated:
            from .simulator.launch import shared_cache

            details["hazard checks"] = environment.read("UNIKERNELS_SIMULATOR_CHECK")
            details["kernels kept in"] = str(shared_cache().folder)
        else:
            from .runtime.toolchain import find_bisheng, find_linker

            details["compiler"], details["linker"] = str(find_bisheng()), str(find_linker())
        return details

    def convert_scales(
        self,
        scales: Scales,
        scale_format: ScaleFormat,
        *,
        psum_layout: Tensor | None = None,
        alignment: int | None = None,
        name: str = "sf",
    ) -> Scales:
        is_finished = scales.format is scale_format and is_canonical(scales)
        if is_finished or scale_format is not self.scale_format:
            return super().convert_scales(scales, scale_format, psum_layout=psum_layout, alignment=alignment, name=name)
        from .kernels.scales import psum_scale_words

        return psum_scale_words(scales, psum_layout, alignment or self.mk_alignment, name)

    def convert_scales_within_k_groups(
        self, scales: Scales, groups: KGroups | None, psum_layout: Tensor, alignment: int, name: str
    ) -> Tensor:
        from .kernels.scales import k_grouped_scale_words

        return k_grouped_scale_words(scales, psum_layout, alignment, name)

    def scales_per_row(self, scales: Scales, layout: GroupLayout) -> Scales:
        from .kernels.scales import scales_per_row

        converted = None if scales.data.is_meta else scales_per_row(scales, layout)
        # Float32 scales that are no powers of two stay what they are: `why_not` refuses them, or a fallback takes them.
        return converted or super().scales_per_row(scales, layout)

    def words_of_scale_bytes(self, exponents: Tensor) -> Tensor:
        if exponents.is_meta:
            return super().words_of_scale_bytes(exponents)
        from .kernels.scales import words_of_bytes
        from .runtime.executor import executor_for

        return words_of_bytes(executor_for(exponents), exponents)

    def place_k_grouped_scales(
        self, sf: Tensor, gran_k: int, k: int, layout: KGroupLayout, groups: KGroups | None, name: str
    ) -> Scales | None:
        from .kernels.k_grouped_scales import placed_scales

        placed = None if sf.is_meta else placed_scales(sf, gran_k, k, layout)
        return placed or super().place_k_grouped_scales(sf, gran_k, k, layout, groups, name)

    def predictions(self, pattern: str = "") -> Iterator[Prediction]:
        from .predicted import predictions

        return predictions(pattern)

    def gemm(self, problem: GemmProblem) -> None:
        from .kernels.gemm import gemm

        gemm(problem)

    def m_grouped_gemm(self, problem: GroupedGemmProblem) -> None:
        from .kernels.m_grouped import m_grouped_gemm

        m_grouped_gemm(problem)

    def batched_gemm(self, problem: BatchedGemmProblem) -> None:
        from .kernels.batched import batched_gemm

        batched_gemm(problem)

    def k_grouped_gemm(self, problem: KGroupedGemmProblem) -> None:
        from .kernels.k_grouped import k_grouped_gemm

        k_grouped_gemm(problem)

    def gathered_m_grouped_gemm(self, problem: GatheredMGroupedGemmProblem) -> None:
        from .kernels.gathered import gathered_m_grouped_gemm

        gathered_m_grouped_gemm(problem)

    def gathered_k_grouped_gemm(self, problem: GatheredKGroupedGemmProblem) -> None:
        from .kernels.gathered import gathered_k_grouped_gemm

        gathered_k_grouped_gemm(problem)

    def tune(self, shapes: Sequence[Shape], file: Path | None, advance: Advance) -> str:
        from .ahead_of_time import tune

        return tune(shapes, file, advance)

    def warmup(self, shapes: Sequence[Shape], num_groups: int, num_processes: int, advance: Advance) -> str:
        from .ahead_of_time import warmup

        return warmup(shapes, num_groups, num_processes, advance)


@hookimpl
def unikernels_backend() -> Backend:
    """Return the Ascend backend."""
    return AscendBackend()


@hookimpl
def unikernels_command_line(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``unikernels simulate``."""
    from .command_line import add_simulate

    add_simulate(subparsers)
