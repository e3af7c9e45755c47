"""The canonical operations: `ALL` is the one table from which tests, reports, benchmarks and doctor derive."""

from .base import LEVELS, Case, Cost, Operation
from .batched import BATCHED_GEMM, BatchedGemmProblem
from .gathered import (
    GATHERED_K_GROUPED_GEMM,
    GATHERED_M_GROUPED_GEMM,
    GatheredKGroupedGemmProblem,
    GatheredMGroupedGemmProblem,
)
from .gemm import GEMM, GemmProblem
from .hc_prenorm import HC_PRENORM, HcPrenormProblem
from .k_grouped import K_GROUPED_GEMM, KGroupedGemmProblem, KGroupLayout
from .m_grouped import M_GROUPED_GEMM, GroupedGemmProblem, GroupLayout
from .mega_gate import MEGA_GATE, MegaGateProblem
from .mega_mhc import MEGA_MHC, MegaMhcProblem
from .mega_moe import MEGA_MOE, TRANSFORM_MEGA_MOE_WEIGHTS, MegaMoeProblem
from .mqa_logits import MQA_LOGITS, PAGED_MQA_LOGITS, MqaLogitsProblem, PagedKeys, PagedMqaLogitsProblem
from .mqa_sparse import (
    PAGED_SPARSE_MQA_LOGITS,
    SPARSE_MQA_LOGITS,
    PagedSparseMqaLogitsProblem,
    SparseMqaLogitsProblem,
    key_positions,
    num_used_blocks,
)
from .operands import Operand

ALL: tuple[Operation, ...] = (
    GEMM,
    M_GROUPED_GEMM,
    K_GROUPED_GEMM,
    BATCHED_GEMM,
    GATHERED_M_GROUPED_GEMM,
    GATHERED_K_GROUPED_GEMM,
    HC_PRENORM,
    MEGA_MHC,
    MEGA_GATE,
    TRANSFORM_MEGA_MOE_WEIGHTS,
    MEGA_MOE,
    MQA_LOGITS,
    PAGED_MQA_LOGITS,
    SPARSE_MQA_LOGITS,
    PAGED_SPARSE_MQA_LOGITS,
)

__all__ = [
    "ALL",
    "BATCHED_GEMM",
    "GATHERED_K_GROUPED_GEMM",
    "GATHERED_M_GROUPED_GEMM",
    "GEMM",
    "HC_PRENORM",
    "K_GROUPED_GEMM",
    "LEVELS",
    "MEGA_GATE",
    "MEGA_MHC",
    "MEGA_MOE",
    "MQA_LOGITS",
    "M_GROUPED_GEMM",
    "PAGED_MQA_LOGITS",
    "PAGED_SPARSE_MQA_LOGITS",
    "SPARSE_MQA_LOGITS",
    "TRANSFORM_MEGA_MOE_WEIGHTS",
    "BatchedGemmProblem",
    "Case",
    "Cost",
    "GatheredKGroupedGemmProblem",
    "GatheredMGroupedGemmProblem",
    "GemmProblem",
    "GroupLayout",
    "GroupedGemmProblem",
    "HcPrenormProblem",
    "KGroupLayout",
    "KGroupedGemmProblem",
    "MegaGateProblem",
    "MegaMhcProblem",
    "MegaMoeProblem",
    "MqaLogitsProblem",
    "Operand",
    "Operation",
    "PagedKeys",
    "PagedMqaLogitsProblem",
    "PagedSparseMqaLogitsProblem",
    "SparseMqaLogitsProblem",
    "key_positions",
    "num_used_blocks",
]
