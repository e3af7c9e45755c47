"""Checks of group layouts: row labels, end offsets, masks and group sizes along K (contract 2.7).

Contents are read only where that costs no device synchronisation: on CPU tensors. On other devices shapes must do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _registry, validate
from .errors import ArgumentTypeError, InvalidArgumentError
from .operations.m_grouped import GroupLayout, first_misplaced_row
from .settings import CURRENT
from .validate_plain import boolean, integer

_BUILD_ENDS = "Build them with end[i] = align(end[i-1], alignment) + size[i]"


def mk_alignment(tensor: Tensor) -> int:
    """Return the alignment of group starts in force for tensors like `tensor`."""
    backend = _registry.current_backend() if tensor.is_meta else _registry.backend_for(tensor)
    if backend.has_fixed_mk_alignment or CURRENT.mk_alignment is None:
        return backend.mk_alignment
    return CURRENT.mk_alignment


def _is_readable(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() > 0


def int32_vector(function: str, name: str, value: object, length: int, why: str, like: Tensor) -> Tensor:
    """Check a contiguous int32 [length] tensor on the device of `like`; `why` says what it holds."""
    tensor = validate.require_tensor(function, name, value)
    if tensor.dtype is not torch.int32:
        validate.require_dtype(function, name, tensor, torch.int32)
    if tensor.ndim != 1 or tensor.shape[0] != length:
        raise InvalidArgumentError(
            f"{function}: {name} has shape {validate.shape_of(tensor)}, expected ({length},): {why}"
        )
    validate.require_contiguous(function, name, tensor)
    validate.require_same_device(function, like, **{name: tensor})
    return tensor


def contiguous_layout(
    function: str,
    layout: object,
    d: Tensor,
    num_groups: int,
    use_psum_layout: object,
    ensure_zero_padding: object,
    expected_m_for_psum_layout: object,
) -> GroupLayout:
    """Check `grouped_layout` of an m-grouped contiguous call whose output is d [m, n]."""
    uses_psum = boolean(function, "use_psum_layout", use_psum_layout)
    pads = boolean(function, "ensure_zero_padding", ensure_zero_padding)
    expected_m = None
    if expected_m_for_psum_layout is not None:
        expected_m = integer(function, "expected_m_for_psum_layout", expected_m_for_psum_layout, 0)
        if not uses_psum:
            raise InvalidArgumentError(
                f"{function}: expected_m_for_psum_layout is {expected_m} but use_psum_layout is False. Leave it out, or "
                f"pass end offsets with use_psum_layout=True."
            )
    alignment = mk_alignment(d)
    m = d.shape[0]
    if uses_psum:
        why = (
            f"one end offset per group (use_psum_layout=True, {num_groups} groups). Row labels, one per row of a, go with "
            f"use_psum_layout=False."
        )
        tensor = int32_vector(function, "grouped_layout", layout, num_groups, why, d)
        end_offsets(function, tensor, m, "rows")
        return GroupLayout("psum", tensor, alignment, expected_m, pads)
    why = f"the group of every row of a (m={m}). End offsets, one per group ({num_groups}), need use_psum_layout=True."
    tensor = int32_vector(function, "grouped_layout", layout, m, why, d)
    row_labels(function, "grouped_layout", tensor, num_groups, alignment)
    return GroupLayout("index", tensor, alignment)


def values_below(function: str, name: str, tensor: Tensor, limit: int, what: str, minimum: int | None = None) -> None:
    """Check on the CPU that values lie below `limit` (and not below `minimum`); `what` says what they mean."""
    if not _is_readable(tensor):
        return
    is_bad = tensor >= limit
    if minimum is not None:
        is_bad |= tensor < minimum
    if bool(is_bad.any()):
        index = int(is_bad.nonzero()[0])
        raise InvalidArgumentError(
            f"{function}: {name}[{index}] is {int(tensor[index])}, expected {what}, below {limit}."
        )


def row_labels(function: str, name: str, labels: Tensor, num_groups: int, alignment: int) -> None:
    """Check row labels on the CPU: groups in range, and for backends that need it one group per aligned block."""
    if not _is_readable(labels):
        return
    if int(labels.max()) >= num_groups:
        what = f"a group (there are {num_groups}) or -1 for a padding row; end offsets need use_psum_layout=True"
        values_below(function, name, labels, num_groups, what)
    if not _registry.backend_for(labels).needs_aligned_groups:
        return
    row = first_misplaced_row(labels, alignment)
    if row is not None:
        first = row - row % alignment
        raise InvalidArgumentError(
            f"{function}: {name}[{row}] is {int(labels[row])} where row {first} has {int(labels[first])}, expected one "
            f"group in rows {first} to {first + alignment - 1}: the alignment in force is {alignment} "
            f"(get_mk_alignment_for_contiguous_layout). Start every group at a multiple of it."
        )


def end_offsets(function: str, ends: Tensor, limit: int, unit: str) -> None:
    """Check the contents of a psum layout on the CPU: non-negative, not decreasing, within the data."""
    if not _is_readable(ends):
        return
    offsets = ends.tolist()
    previous = 0
    for index, end in enumerate(offsets):
        if end < previous:
            expected = "at least 0" if index == 0 else f"at least {previous}, the end before it: ends never decrease"
            raise InvalidArgumentError(
                f"{function}: grouped_layout[{index}] is {end} (all: {_shortened(offsets)}), expected {expected}. "
                f"{_BUILD_ENDS}."
            )
        previous = end
    if previous > limit:
        raise InvalidArgumentError(
            f"{function}: grouped_layout ends at {previous} (all: {_shortened(offsets)}), but a has {limit} {unit}. "
            f"{_BUILD_ENDS}, and allocate up to the last end."
        )


def _shortened(values: list[int]) -> str:
    return str(values) if len(values) <= 8 else f"[{', '.join(map(str, values[:8]))}, ... {len(values)} values]"


def masked_layout(function: str, masked_m: object, expected_m: object, d: Tensor) -> GroupLayout:
    """Check `masked_m` and `expected_m` of a masked call whose output is d [num_groups, max_m, n]."""
    num_groups, max_m = d.shape[:2]
    expected = integer(function, "expected_m", expected_m, 0, why="the number of rows to expect per group, a hint")
    tensor = validate.require_tensor(function, "masked_m", masked_m)
    if tensor.ndim != 1 and tensor.numel() == num_groups and tensor.is_contiguous():
        tensor = tensor.view(-1)
    why = "the number of valid rows of every group."
    tensor = int32_vector(function, "masked_m", tensor, num_groups, why, d)
    if _is_readable(tensor):
        counts = tensor.tolist()
        for group, count in enumerate(counts):
            if not 0 <= count <= max_m:
                raise InvalidArgumentError(
                    f"{function}: masked_m[{group}] is {count}, expected 0 to {max_m}, the rows of each group of a."
                )
    return GroupLayout("masked", tensor, mk_alignment(d), expected)


def group_sizes(function: str, value: object) -> tuple[int, ...] | None:
    """Read `ks_cpu`: a list of non-negative sizes; None and [] mean that there is none."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        raise ArgumentTypeError(f"{function}: ks_cpu is a tensor, expected a list of ints. Pass ks_cpu.tolist().")
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(f"{function}: ks_cpu is {value!r}, expected a list of ints, one per group, or None.")
    return tuple(integer(function, f"ks_cpu[{index}]", size, 0) for index, size in enumerate(value)) or None
