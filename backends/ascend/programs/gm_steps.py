"""Matrices in GM: the types of a GEMM program's arguments, and views of them.

Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites macros from their source: assignments declare buffers and variables.

from dataclasses import dataclass
from typing import Any

import tilelang.ascend.language as T

from .gemm_variant import GemmVariant

DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "fp4": "float4_e2m1fn", "fp32": "float32"}


@dataclass(frozen=True, eq=False)  # macros return tuples without their names
class Matrix:
    """A matrix in GM: the last two axes of a buffer, at an index of the axes before them."""

    buffer: Any
    index: tuple[Any, ...] = ()

    def block(self, row: Any, rows: Any, column: Any, columns: Any) -> Any:
        """Return a region. Copies clamp it to the buffer and fill what is missing of an L1 tile with zeros."""
        return self.buffer[(*self.index, slice(row, row + rows), slice(column, column + columns))]


@dataclass(frozen=True, eq=False)
class Types:
    """Types of a GEMM program's tensors, and the symbols M, N, K."""

    a: Any
    b: Any
    sa: Any
    sb: Any
    c: Any
    d: Any
    sfd: Any
    sizes: tuple[Any, Any, Any]


def gm_types(
    variant: GemmVariant, a_groups: tuple[Any, ...] = (), b_groups: tuple[Any, ...] = (), d_groups: tuple[Any, ...] = ()
) -> Types:
    """Return the types of tensors.

    Args:
        a_groups, b_groups, d_groups: sizes in front of the last two; all strides but the last are free.
    """
    M, N, K, KP, KB = (T.dynamic(name) for name in ("M", "N", "K", "KP", "KB"))
    if variant.element == "fp4":
        K = KB * 2

    def strided(name: str, groups: tuple[Any, ...], rows: Any, columns: Any, dtype: str) -> Any:
        outer = tuple(T.dynamic(f"group_{name}{i}") for i in range(len(groups)))
        return T.StridedTensor((*groups, rows, columns), (*outer, T.dynamic(f"ld{name}"), 1), dtype)

    def operand(name: str, groups: tuple[Any, ...], rows: Any, is_k_major: bool) -> Any:
        if variant.element == "fp4":
            return T.Tensor((*groups, rows, KB), "uint8")
        if variant.is_packed(name):
            return strided(name, groups, *((rows, KB) if is_k_major else (K, T.dynamic(f"bytes_{name}"))), "uint8")
        return strided(name, groups, *((rows, K) if is_k_major else (K, rows)), DTYPES[variant.element])

    a, b = operand("a", a_groups, M, variant.a_is_k_major), operand("b", b_groups, N, variant.b_is_k_major)
    sa = T.Tensor((*a_groups, KP, M) if variant.is_scaled else (1,), "int16")
    sb = T.Tensor((*b_groups, KP, N) if variant.is_scaled else (1,), "int16")
    columns = T.dynamic("ND") if variant.epilogue == "heads" else N
    c, d = (strided(name, d_groups, M, columns, variant.out) for name in "cd")
    sfd = strided("s", d_groups, T.dynamic("W"), M, variant.sfd) if variant.epilogue == "quantise" else c
    return Types(a, b, sa, sb, c, d, sfd, (M, N, K))


def elements(variant: GemmVariant, operand: Any, *shape: Any) -> Any:
    """Return an operand in GM as elements: FP4 arrives as bytes, because torch tensors count those."""
    return T.view(operand, shape, dtype=DTYPES["fp4"]) if variant.element == "fp4" else operand


def ending_at(operand: Any, rows: Any) -> Any:
    """Return a tensor in GM as if it had `rows` rows only, so that copies end there and fill tiles with zeros behind."""
    *groups, _, columns = operand.shape
    strides = list(operand.strides)
    if not strides:
        strides = [columns, 1]
        for size in reversed(operand.shape[1:-1]):
            strides.insert(0, strides[0] * size)
    return T.StridedTensor((*groups, rows, columns), tuple(strides), operand.dtype, data=operand.data)
