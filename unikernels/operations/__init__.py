"""The canonical operations: `ALL` is the one table from which tests, reports, benchmarks and doctor derive."""

from .base import Case, Cost, Operation
from .gemm import GEMM, GemmProblem
from .operands import Operand

ALL: tuple[Operation, ...] = (GEMM,)

__all__ = ["ALL", "GEMM", "Case", "Cost", "GemmProblem", "Operand", "Operation"]
