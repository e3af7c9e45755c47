"""The CPU backend: every operation, always available, the default for CPU tensors.

Kernels are imported inside the methods, so that discovery costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from unikernels import hookimpl
from unikernels.backend import Backend
from unikernels.scale_layouts import ScaleFormat

if TYPE_CHECKING:
    from unikernels.mega_moe.weights import StoredWeights, TransformMegaMoeWeightsProblem
    from unikernels.operations import (
        BatchedGemmProblem,
        GatheredKGroupedGemmProblem,
        GatheredMGroupedGemmProblem,
        GemmProblem,
        GroupedGemmProblem,
        HcPrenormProblem,
        KGroupedGemmProblem,
        MegaGateProblem,
        MegaMhcProblem,
        MegaMoeProblem,
        MqaLogitsProblem,
        PagedMqaLogitsProblem,
        PagedSparseMqaLogitsProblem,
        SparseMqaLogitsProblem,
    )


class CpuBackend(Backend):
    """All canonical operations in native code and torch, on CPU tensors."""

    name = "cpu"
    device_types = ("cpu",)
    auto_device_types = ("cpu",)
    # What `transform_sf_into_required_layout` produces; kernels read every format as it is.
    scale_format = ScaleFormat.UE8M0X4_INT32
    needs_aligned_groups = False
    keeps_float32_scales = True

    def num_cores(self) -> int:
        return torch.get_num_threads()

    def details(self) -> Mapping[str, str]:
        from . import _native
        from .kernels.matmul import compute_dtype, multiplies_in_torch, num_threads

        *_, best = usable = _native.isa_variants()
        unused = [name for name in _native.built_variants() if name not in usable]
        dtype = compute_dtype()
        if dtype == "fp32" and best == "avx512_bf16":
            best = usable[-2]
        return {
            "instruction sets": f"{best} in use; built: {', '.join(_native.built_variants())}"
            + (f"; not on this CPU: {', '.join(unused)}" if unused else ""),
            "products": f"{dtype}{', of large panels in torch' if dtype == 'bf16' and multiplies_in_torch() else ''}",
            "threads": str(num_threads()),
        }

    def gemm(self, problem: GemmProblem) -> None:
        from .kernels.gemm import gemm

        gemm(problem)

    def hc_prenorm_gemm(self, problem: HcPrenormProblem) -> None:
        from .kernels.hc_prenorm import hc_prenorm_gemm

        hc_prenorm_gemm(problem)

    def mega_mhc(self, problem: MegaMhcProblem) -> None:
        from .kernels.mega_mhc import mega_mhc

        mega_mhc(problem)

    def m_grouped_gemm(self, problem: GroupedGemmProblem) -> None:
        from .kernels.m_grouped import m_grouped_gemm

        m_grouped_gemm(problem)

    def mega_gate(self, problem: MegaGateProblem) -> None:
        from .kernels.mega_gate import mega_gate

        mega_gate(problem)

    def k_grouped_gemm(self, problem: KGroupedGemmProblem) -> None:
        from .kernels.k_grouped import k_grouped_gemm

        k_grouped_gemm(problem)

    def mqa_logits(self, problem: MqaLogitsProblem) -> None:
        from .kernels.mqa_logits import mqa_logits

        mqa_logits(problem)

    def paged_mqa_logits(self, problem: PagedMqaLogitsProblem) -> None:
        from .kernels.mqa_logits import paged_mqa_logits

        paged_mqa_logits(problem)

    def sparse_mqa_logits(self, problem: SparseMqaLogitsProblem) -> None:
        from .kernels.mqa_sparse import sparse_mqa_logits

        sparse_mqa_logits(problem)

    def paged_sparse_mqa_logits(self, problem: PagedSparseMqaLogitsProblem) -> None:
        from .kernels.mqa_sparse import paged_sparse_mqa_logits

        paged_sparse_mqa_logits(problem)

    def transform_mega_moe_weights(
        self, problem: TransformMegaMoeWeightsProblem
    ) -> tuple[StoredWeights, StoredWeights]:
        from unikernels.mega_moe.weights import transform

        return transform(problem)

    def mega_moe(self, problem: MegaMoeProblem) -> None:
        from .kernels.mega_moe import mega_moe

        mega_moe(problem)

    def batched_gemm(self, problem: BatchedGemmProblem) -> None:
        from .kernels.batched import batched_gemm

        batched_gemm(problem)

    def gathered_m_grouped_gemm(self, problem: GatheredMGroupedGemmProblem) -> None:
        from .kernels.gathered import gathered_m_grouped_gemm

        gathered_m_grouped_gemm(problem)

    def gathered_k_grouped_gemm(self, problem: GatheredKGroupedGemmProblem) -> None:
        from .kernels.gathered import gathered_k_grouped_gemm

        gathered_k_grouped_gemm(problem)


@hookimpl
def unikernels_backend() -> Backend:
    """Return the CPU backend."""
    return CpuBackend()
