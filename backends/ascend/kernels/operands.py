"""Operands in the form GEMM kernels read: one element format, unit strides along rows as they are stored, scale words.

No TileLang here, and no choice of a kernel.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor

from unikernels.operations.k_grouped import KGroupLayout
from unikernels.operations.m_grouped import GroupLayout
from unikernels.operations.operands import Operand
from unikernels.scale_layouts import ScaleFormat, is_power_of_two

from ..programs.gemm_variant import Element, GemmForm, Packed
from ..runtime.executor import Executor
from . import scales

#: TileLang dtypes of outputs.
OUT = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def why_not(a: Operand, b: Operand, rows: GroupLayout | None = None, columns: KGroupLayout | None = None) -> str | None:
    """Return what no kernel can read about the operands of a GEMM, else None.

    Args:
        rows, columns: groups along the rows of A and along K; scales that belong to none may hold anything.
    """
    for name, operand, of_rows in (("a", a, rows), ("b", b, None)):
        if operand.kind == "fp4" and operand.scales is None:
            return f"its fp4 kernels need block scales (operand {name})"
        reason = _scales_reason(name, operand, of_rows, columns)
        if reason is not None:
            return reason
    return None


def _scales_reason(name: str, operand: Operand, rows: GroupLayout | None, columns: KGroupLayout | None) -> str | None:
    """Scales are multiplied as powers of two; values are read where that waits for no device."""
    given = operand.scales
    if given is None or given.format is not ScaleFormat.FP32 or not given.data.is_cpu:
        return None
    if is_power_of_two(given) or is_power_of_two(scales.without_gaps(given, rows, columns)):
        return None
    return (
        f"it multiplies by powers of two (UE8M0 scales), and the float32 scales of {name} hold other values; quantise "
        f"with use_ue8m0=True"
    )


def formats(a: Operand, b: Operand) -> tuple[Element, tuple[Packed, ...]]:
    """Return the format the cube reads, and which operands arrive in another one.

    The cube takes two operands of one format, and FP4 along MN has no proven transposing copy.
    """
    if a.kind == b.kind and (a.kind != "fp4" or (a.is_k_major and b.is_k_major)):
        return a.kind, ()
    assert {a.kind, b.kind} <= {"fp4", "fp8"}
    operands: tuple[tuple[Literal["a", "b"], Operand], ...] = (("a", a), ("b", b))
    return "fp8", tuple(Packed(name, one.is_k_major) for name, one in operands if one.kind == "fp4")


def arguments(
    executor: Executor,
    a: Operand,
    b: Operand,
    form: GemmForm,
    rows: GroupLayout | None = None,
    columns: KGroupLayout | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what GEMM programs take first: A, B and their scale words.

    Args:
        rows, columns: groups along the rows of A and along K; scales that belong to none are not read.
    """
    return (
        stored(a, form.element),
        stored(b, form.element),
        scale_words(executor, a, rows, columns),
        scale_words(executor, b, None, columns),
    )


def stored(operand: Operand, element: Element | None = None) -> Tensor:
    """Return the data as it lies in memory: [.., mn, k], or [.., k, mn]; FP4 as bytes of two.

    Args:
        element: what the cube reads. FP4 elements are a view of the bytes, which allows no pitch.
    """
    data = operand.data if operand.is_k_major else operand.data.mT
    if operand.kind == "fp4":
        data = data.view(torch.uint8)
    return canonical(data) if element == "fp4" else unit_rows(data)


def scale_words(
    executor: Executor, operand: Operand, rows: GroupLayout | None = None, columns: KGroupLayout | None = None
) -> Tensor:
    """Return int16 [.., ceil(k / 64), mn]; one unused word for an operand without scales.

    Args:
        rows, columns: groups along the rows and along K; scales that belong to none are not read (see scales.py).
    """
    if operand.scales is None:
        return unused(torch.int16, operand.data.device)
    return scales.scale_words(executor, operand.scales, rows, columns)


@functools.cache
def unused(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor [1] of any content in place of an argument that a kernel ignores; one per device: making it costs time."""
    return torch.empty(1, dtype=dtype, device=device)


def canonical(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor whose strides say so even along axes of length 1."""
    return tensor.contiguous().view(-1).view(tensor.shape)


def output(tensor: Tensor) -> Tensor:
    """Return a view of an output [.., rows, columns] with strides (.., pitch, 1)."""
    view = unit_rows(tensor)
    assert view.data_ptr() == tensor.data_ptr(), f"rows of an output overlap: strides {tensor.stride()}"
    return view


def unit_rows(tensor: Tensor) -> Tensor:
    """Return [.., rows, columns] with strides (.., pitch, 1), pitch >= columns.

    A copy is made only where rows overlap (expanded tensors).
    """
    *leading, rows, columns = tensor.shape
    *outer, pitch, step = tensor.stride()
    if rows == 1:
        pitch = columns
    if columns == 1:
        step = 1
    if step != 1 or pitch < columns:
        return canonical(tensor)
    return tensor.as_strided((*leading, rows, columns), (*outer, pitch, 1))
