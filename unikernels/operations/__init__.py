"""The canonical operations: `ALL` is the one table from which tests, reports, benchmarks and doctor derive."""

from .base import Case, Cost, Operation
from .gemm import GEMM, GemmProblem
from .hc_prenorm import HC_PRENORM, HcPrenormProblem
from .m_grouped import M_GROUPED_GEMM, GroupedGemmProblem, GroupLayout
from .mega_gate import MEGA_GATE, MegaGateProblem
from .mega_mhc import MEGA_MHC, MegaMhcProblem
from .operands import Operand

ALL: tuple[Operation, ...] = (GEMM, M_GROUPED_GEMM, HC_PRENORM, MEGA_MHC, MEGA_GATE)

__all__ = [
    "ALL",
    "GEMM",
    "HC_PRENORM",
    "MEGA_GATE",
    "MEGA_MHC",
    "M_GROUPED_GEMM",
    "Case",
    "Cost",
    "GemmProblem",
    "GroupLayout",
    "GroupedGemmProblem",
    "HcPrenormProblem",
    "MegaGateProblem",
    "MegaMhcProblem",
    "Operand",
    "Operation",
]
