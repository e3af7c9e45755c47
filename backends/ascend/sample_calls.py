"""Calls of the library's own functions on tensors of given sizes, whose contents do not matter.

For what needs no data: predicting times, and finding the kernels that such calls need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
from torch import Tensor

import unikernels

OperandType = Literal["bf16", "fp8", "fp4"]
#: Operand types that the usual calls combine.
_TYPES: tuple[tuple[OperandType, OperandType], ...] = (
    ("bf16", "bf16"),
    ("fp8", "fp8"),
    ("fp8", "fp4"),
    ("fp4", "fp4"),
)


def usual_calls(m: int, n: int, k: int, num_groups: int) -> Iterator[Callable[[], None]]:
    """Yield dense GEMMs, or those of `num_groups` groups if it is not 0: K-major operands, bfloat16 output, int16 scales.

    FP8 operands of dense GEMMs come with float32 scales per 1x128 and 128x128 too. Groups along M come in every layout,
    those along K (operands K first) with float32 output and with and without C. Sizes are those of one group. Tensors
    are made when a call is made, on torch's default device.
    """
    for left, right in _TYPES:
        if k % 2 and "fp4" in (left, right):
            continue
        if not num_groups:
            yield partial(gemm, left, right, m, n, k)
            continue
        for layout in ("index", "psum", "masked"):
            yield partial(m_grouped_gemm, left, right, layout, num_groups, m, n, k)
        if left == right != "fp4":
            for accumulates in (False, True):
                yield partial(k_grouped_gemm, left, num_groups, m, n, k, accumulates)
    if not num_groups:
        yield partial(gemm_with_float32_scales, m, n, k)


def gemm(left: OperandType, right: OperandType, m: int, n: int, k: int) -> None:
    """D = A @ B.T."""
    d = torch.empty(m, n, dtype=torch.bfloat16)
    if left == "bf16":
        unikernels.bf16_gemm_nt(_bf16(m, k), _bf16(n, k), d)
    else:
        unikernels.fp8_fp4_gemm_nt(_scaled(left, m, k), _scaled(right, n, k), d, recipe=(1, 1, 32))


def gemm_with_float32_scales(m: int, n: int, k: int) -> None:
    """D = A @ B.T of FP8 operands, whose scales are turned into int16."""
    a, b = (torch.empty(rows, k, dtype=torch.float8_e4m3fn) for rows in (m, n))
    sfa, sfb = (torch.ones(rows, -(-k // 128)) for rows in (m, -(-n // 128)))  # values are checked before any kernel
    unikernels.fp8_gemm_nt((a, sfa), (b, sfb), torch.empty(m, n, dtype=torch.bfloat16), recipe=(1, 128, 128))


def m_grouped_gemm(
    left: OperandType,
    right: OperandType,
    layout: Literal["index", "psum", "masked"],
    num_groups: int,
    m: int,
    n: int,
    k: int,
) -> None:
    """D[row] = A[row] @ B[group of row].T; every group has `m` rows, which end at an aligned row unless masked."""
    alignment = unikernels.get_mk_alignment_for_contiguous_layout()
    rows = (num_groups, m) if layout == "masked" else (num_groups * -(-m // alignment) * alignment,)
    d = torch.empty(*rows, n, dtype=torch.bfloat16)
    name = "bf16" if left == "bf16" else "fp8_fp4"
    a, b = (
        _bf16(*shape) if kind == "bf16" else _scaled(kind, *shape)
        for kind, shape in ((left, (*rows, k)), (right, (num_groups, n, k)))
    )
    recipe = {} if left == "bf16" else {"recipe": (1, 1, 32)}
    if layout == "masked":
        sizes = torch.full((num_groups,), m, dtype=torch.int32)
        getattr(unikernels, f"m_grouped_{name}_gemm_nt_masked")(a, b, d, sizes, m, **recipe)
        return
    groups = torch.arange(num_groups, dtype=torch.int32)
    labels = (
        groups * (rows[0] // num_groups) + m if layout == "psum" else groups.repeat_interleave(rows[0] // num_groups)
    )
    function = getattr(unikernels, f"m_grouped_{name}_gemm_nt_contiguous")
    function(a, b, d, labels, use_psum_layout=layout == "psum", **recipe)


def k_grouped_gemm(kind: OperandType, num_groups: int, m: int, n: int, k: int, accumulates: bool) -> None:
    """D[g] = [D[g] +] A_g.T @ B_g; every group has `k` rows, rounded up to an aligned row."""
    alignment = unikernels.get_mk_alignment_for_contiguous_layout()
    depth = -(-k // alignment) * alignment
    d = torch.empty(num_groups, m, n)
    sizes = torch.full((num_groups,), depth, dtype=torch.int32)
    arguments = (d, [depth] * num_groups, sizes, d if accumulates else None)
    total = num_groups * depth
    if kind == "bf16":
        unikernels.k_grouped_bf16_gemm_tn_contiguous(_bf16(total, m), _bf16(total, n), *arguments)
        return
    a, b = ((torch.empty(total, mn, dtype=torch.float8_e4m3fn), _words(mn, total).mT) for mn in (m, n))
    unikernels.k_grouped_fp8_gemm_tn_contiguous(a, b, *arguments, recipe=(1, 1, 32))


def _bf16(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def _words(*shape: int) -> Tensor:
    """Return int16 scales of an operand [.., mn, k], MN-major."""
    *leading, mn, k = shape
    return torch.empty(*leading, -(-k // 64), mn, dtype=torch.int16).mT


def _scaled(kind: OperandType, *shape: int) -> tuple[Tensor, Tensor]:
    """Return data and scales of a K-major operand [.., mn, k]."""
    *leading, k = shape
    columns, dtype = (k // 2, torch.int8) if kind == "fp4" else (k, torch.float8_e4m3fn)
    return torch.empty(*leading, columns, dtype=dtype), _words(*shape)
