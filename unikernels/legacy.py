"""The grouped GEMMs of `deep_gemm.legacy`: bfloat16, row labels, and operands gathered through indices.

Contract: DeepGEMM 2.8.2, section "Legacy Triton GEMMs". New code uses the m-grouped and k-grouped functions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from . import validate
from ._registry import bound
from .api.gemm import write_empty_product
from .api.m_grouped import contiguous_gemm
from .errors import ArgumentTypeError, InvalidArgumentError
from .operations.gathered import GatheredKGroupedGemmProblem, GatheredMGroupedGemmProblem
from .operations.operands import Operand
from .validate_groups import int32_vector, mk_alignment, row_labels, values_below
from .validate_plain import boolean

_LABELS = (False, True, None)  # use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout

__all__ = [
    "a_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
    "a_fused_m_grouped_bf16_gemm_nn_contiguous_tl",
    "a_fused_m_grouped_bf16_gemm_nt_contiguous_tl",
    "b_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
    "m_grouped_bf16_gemm_nn_contiguous_tl",
    "m_grouped_bf16_gemm_nt_contiguous_tl",
]


def m_grouped_bf16_gemm_nt_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor) -> None:
    """Compute d[row] = a[row] @ b[m_indices[row]].T; rows labelled -1 become zeros.

    Args:
        a: [m, k] bfloat16. b: [num_groups, n, k] bfloat16. d: [m, n] bfloat16 or float32.
        m_indices: int32 [m], row labels as in `m_grouped_bf16_gemm_nt_contiguous`.

    Contract: DeepGEMM 2.8.2, `legacy.m_grouped_bf16_gemm_nt_contiguous_tl`.
    """
    contiguous_gemm("m_grouped_bf16_gemm_nt_contiguous_tl", a, b, d, m_indices, _LABELS, None, None, "nk", False)


def m_grouped_bf16_gemm_nn_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor) -> None:
    """Compute d[row] = a[row] @ b[m_indices[row]], with b [num_groups, k, n]; see the nt form."""
    contiguous_gemm("m_grouped_bf16_gemm_nn_contiguous_tl", a, b, d, m_indices, _LABELS, None, None, "nk", True)


def a_fused_m_grouped_bf16_gemm_nt_contiguous_tl(
    a: Tensor, b: Tensor, d: Tensor, mappings: tuple[Tensor, Tensor]
) -> None:
    """Compute d[row] = a[m_row_indices[row]] @ b[m_indices[row]].T; row index or label -1 gives zeros.

    Args:
        a: [num_a_rows, k] bfloat16. b: [num_groups, n, k] bfloat16. d: [m, n] bfloat16 or float32.
        mappings: (m_indices, m_row_indices), int32 [m] each: group labels as in `m_grouped_bf16_gemm_nt_contiguous`, and
            rows of a.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Contract: DeepGEMM 2.8.2, `legacy.a_fused_m_grouped_bf16_gemm_nt_contiguous_tl`.
    """
    _gathered_rows("a_fused_m_grouped_bf16_gemm_nt_contiguous_tl", a, b, d, mappings, False)


def a_fused_m_grouped_bf16_gemm_nn_contiguous_tl(
    a: Tensor, b: Tensor, d: Tensor, mappings: tuple[Tensor, Tensor]
) -> None:
    """Compute d[row] = a[m_row_indices[row]] @ b[m_indices[row]], with b [num_groups, k, n]; see the nt form."""
    _gathered_rows("a_fused_m_grouped_bf16_gemm_nn_contiguous_tl", a, b, d, mappings, True)


def a_fused_k_grouped_bf16_gemm_tn_contiguous_tl(
    a: Tensor, b: Tensor, d: Tensor, handle: tuple[Tensor, Tensor, Tensor], acc: bool
) -> None:
    """Compute d[g] (+)= sum over k in [k_start[g], k_end[g]) of a[k_indices[k]].T @ b[k]; index -1 reads zeros.

    Args:
        a: [num_a_rows, m] bfloat16, contiguous. b: [num_k, n] bfloat16, contiguous.
        d: [num_groups, m, n] bfloat16 or float32, contiguous.
        handle: (k_indices [num_k], k_start [num_groups], k_end [num_groups]), int32.
        acc: add to d instead of overwriting it; an empty group then leaves d[g] as it is, else it writes zeros.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Contract: DeepGEMM 2.8.2, `legacy.a_fused_k_grouped_bf16_gemm_tn_contiguous_tl`.
    """
    _gathered_k("a_fused_k_grouped_bf16_gemm_tn_contiguous_tl", a, b, d, handle, acc, "a")


def b_fused_k_grouped_bf16_gemm_tn_contiguous_tl(
    a: Tensor, b: Tensor, d: Tensor, handle: tuple[Tensor, Tensor, Tensor], acc: bool
) -> None:
    """Compute d[g] (+)= sum over k in [k_start[g], k_end[g]) of a[k].T @ b[k_indices[k]]; see the form gathering a."""
    _gathered_k("b_fused_k_grouped_bf16_gemm_tn_contiguous_tl", a, b, d, handle, acc, "b")


def _parts(function: str, name: str, value: object, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        raise ArgumentTypeError(f"{function}: {name} is {value!r}, expected ({', '.join(names)}), int32 tensors.")
    return tuple(validate.require_tensor(function, f"{name}[{i}]", one) for i, one in enumerate(value))


def _gathered_rows(function: str, a: object, b: object, d: object, mappings: object, transposes_b: bool) -> None:
    labels, rows = _parts(function, "mappings", mappings, ("m_indices", "m_row_indices"))
    b_data = validate.require_tensor(function, "b", b)
    if transposes_b and b_data.ndim >= 2:
        b_data = b_data.transpose(-1, -2)
    left = validate.matrix(function, "a", validate.require_tensor(function, "a", a), ndim=2, kinds=("bf16",))
    right = validate.matrix(function, "b", b_data, ndim=3, kinds=("bf16",))
    validate.require_equal_k(function, left, right)
    if not left.is_k_major:
        raise InvalidArgumentError(f"{function}: a has strides {left.data.stride()}, expected a unit stride along K.")
    num_groups, m = b_data.shape[0], labels.numel()
    output = validate.output(function, "d", d, (m, right.mn))
    validate.require_same_device(function, output, a=left.data, b=b_data)
    labels = int32_vector(function, "m_indices", labels, m, "the group of every row of d.", output)
    rows = int32_vector(function, "m_row_indices", rows, m, "the row of a for every row of d.", output)
    alignment = mk_alignment(output)
    row_labels(function, "m_indices", labels, num_groups, alignment)
    values_below(function, "m_row_indices", rows, left.mn, "a row of a, or -1")
    if output.numel() == 0:
        return
    validate.refuse_overlap(function, "d", output, a=left.data, b=b_data, m_indices=labels, m_row_indices=rows)
    if left.k == 0:
        write_empty_product(output, None, None)
        return
    problem = GatheredMGroupedGemmProblem(left, right, output, labels, rows, alignment)
    bound("gathered_m_grouped_gemm", output)(problem)


def _gathered_k(
    function: str, a: object, b: object, d: object, handle: object, acc: object, gathers: Literal["a", "b"]
) -> None:
    indices, starts, stops = _parts(function, "handle", handle, ("k_indices", "k_start", "k_end"))
    accumulates = boolean(function, "acc", acc)
    operands = []
    for name, value in (("a", a), ("b", b)):
        data = validate.require_tensor(function, name, value)
        validate.require_dtype(function, name, data, torch.bfloat16)
        if data.ndim != 2:
            raise InvalidArgumentError(
                f"{function}: {name} has {data.ndim} dimensions (shape {validate.shape_of(data)}), expected 2."
            )
        validate.require_contiguous(function, name, data)
        operands.append(Operand(data.transpose(0, 1), "bf16", data.shape[1], data.shape[0], False))
    left, right = operands
    output = validate.require_tensor(function, "d", d)
    num_groups = starts.numel()
    validate.output(function, "d", output, (num_groups, left.mn, right.mn), why="(num_groups, m, n)")
    validate.require_contiguous(function, "d", output)
    validate.require_same_device(function, output, a=left.data, b=right.data)
    gathered, other = (left, right) if gathers == "a" else (right, left)
    name = "b" if gathers == "a" else "a"
    indices = int32_vector(function, "k_indices", indices, other.k, f"an index for every row of {name}.", output)
    starts = int32_vector(function, "k_start", starts, num_groups, "where each group starts.", output)
    stops = int32_vector(function, "k_end", stops, num_groups, "where each group ends.", output)
    values_below(function, "k_indices", indices, gathered.k, f"a row of {gathers}, or -1")
    values_below(function, "k_end", stops, other.k + 1, "at most the number of indices")
    values_below(function, "k_start", starts, other.k + 1, "at most the number of indices", minimum=0)
    if output.numel() == 0:
        return
    validate.refuse_overlap(function, "d", output, a=left.data, b=right.data, k_indices=indices)
    problem = GatheredKGroupedGemmProblem(left, right, output, indices, starts, stops, gathers, accumulates)
    bound("gathered_k_grouped_gemm", output)(problem)
