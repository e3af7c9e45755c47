"""Dense GEMM on Ascend, host side: which kernel variant a problem needs, and its operands in the form kernels read.

No TileLang here; the program is in gemm_program.py, the choice of tiles in gemm_tiles.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unikernels.operations import GemmProblem
from unikernels.operations.operands import Operand
from unikernels.scale_layouts import ScaleFormat, convert_scales, is_power_of_two
from unikernels.settings import CURRENT

from ..runtime.executor import Executor, executor_for
from ..runtime.kernel import Kernel
from .expand_fp4 import expand_fp4
from .gemm_tiles import choose, transposed_row_multiple
from .gemm_variant import Element, Epilogue, GemmVariant

_OUT = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def why_not(problem: GemmProblem) -> str | None:
    """Return what this version has no kernel for, else None."""
    if problem.head_splits is not None:
        return "it has no kernel that leaves out the middle columns of heads (fp8_gemm_nt_skip_head_mid)"
    if problem.epilogue is not None:
        return f"it has no kernel with the epilogue {type(problem.epilogue).__name__}; Identity and Alpha work"
    for name, operand in (("a", problem.a), ("b", problem.b)):
        if operand.kind not in ("bf16", "fp8", "fp4"):
            return f"it has no {operand.kind} kernel (operand {name})"
        if operand.kind == "fp4" and operand.scales is None:
            return f"its fp4 kernels need block scales (operand {name})"
        reason = _scales_reason(name, operand)
        if reason is not None:
            return reason
    return None


def _scales_reason(name: str, operand: Operand) -> str | None:
    """Scales are multiplied as powers of two; values are read where that waits for no device."""
    scales = operand.scales
    if scales is None or scales.format is not ScaleFormat.FP32 or not scales.data.is_cpu:
        return None
    if is_power_of_two(scales):
        return None
    return (
        f"it multiplies by powers of two (UE8M0 scales), and the float32 scales of {name} hold other values; quantise "
        f"with use_ue8m0=True"
    )


def gemm(problem: GemmProblem) -> None:
    """D = C + alpha * A @ B.T."""
    executor = executor_for(problem.d)
    a, b = problem.a, problem.b
    if not (a.kind == b.kind == "fp4" and a.is_k_major and b.is_k_major):
        # FP4 along MN has no proven transposing copy, and both operands of the cube have one format.
        a, b = _as_fp8(executor, a), _as_fp8(executor, b)
    variant = _variant(problem, a, b, CURRENT.num_sms or executor.num_cores())
    executor.run(
        Kernel("gemm_program", variant),
        _stored(a),
        _stored(b),
        _scale_words(a),
        _scale_words(b),
        _unit_rows(problem.c if problem.c is not None else problem.d),
        _unit_rows(problem.d),
        problem.alpha,
    )


def _variant(problem: GemmProblem, a: Operand, b: Operand, num_cores: int) -> GemmVariant:
    element: Element = a.kind  # type: ignore[assignment]  # why_not refused fp32
    epilogue: Epilogue = "store" if problem.alpha == 1.0 else "scale"
    if problem.c is not None:
        epilogue = "accumulate" if problem.c is problem.d else "add"
    is_scaled = a.scales is not None
    row_multiple = 16 if a.is_k_major and b.is_k_major else transposed_row_multiple(element)
    out_bytes = problem.d.element_size()
    tiles = choose(problem.m, problem.n, problem.k, element, is_scaled, out_bytes, epilogue, num_cores, row_multiple)
    return GemmVariant(
        element, is_scaled, a.is_k_major, b.is_k_major, _OUT[problem.d.dtype], epilogue, tiles, num_cores
    )


def _as_fp8(executor: Executor, operand: Operand) -> Operand:
    """Return an FP4 operand as FP8 with the same values and scales; others as they are."""
    if operand.kind != "fp4":
        return operand
    stored = operand.data if operand.is_k_major else operand.data.mT
    expanded = expand_fp4(executor, stored)
    return replace(operand, data=expanded if operand.is_k_major else expanded.mT, kind="fp8")


def _stored(operand: Operand) -> Tensor:
    """Return the data as it lies in memory: [mn, k], or [k, mn]; FP4 as bytes without pitch."""
    if operand.kind == "fp4":
        return _canonical(operand.data.view(torch.uint8))
    return _unit_rows(operand.data if operand.is_k_major else operand.data.mT)


def _scale_words(operand: Operand) -> Tensor:
    """Return int16 [ceil(k / 64), mn]; one unused word for an operand without scales."""
    if operand.scales is None:
        return torch.zeros(1, dtype=torch.int16, device=operand.data.device)
    return _canonical(convert_scales(operand.scales, ScaleFormat.UE8M0X2_INT16).data.mT)


def _canonical(matrix: Tensor) -> Tensor:
    """Return a contiguous matrix whose strides say so even along axes of length 1."""
    return matrix.contiguous().view(-1).view(matrix.shape)


def _unit_rows(matrix: Tensor) -> Tensor:
    """Return a matrix with strides (pitch, 1), pitch >= columns; a copy only where rows overlap (expanded tensors)."""
    rows, columns = matrix.shape
    pitch, step = matrix.stride()
    if rows == 1:
        pitch = columns
    if columns == 1:
        step = 1
    if step != 1 or pitch < columns:
        return _canonical(matrix)
    return matrix.as_strided((rows, columns), (pitch, 1))
