"""Scales of k-grouped operands: every accepted form becomes ordinary scales of one [mn, sum_k] matrix.

Contract: DeepGEMM 2.8.2, "K-grouped scales": K first; aligned rows, the compact rows of 2.6.1, words per group.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from .. import _registry, validate
from ..errors import InvalidArgumentError
from ..operations.k_grouped import KGroupLayout
from ..operations.operands import Operand
from ..scale_layouts import Scales, format_of
from ..scale_layouts.formats import ScaleFormat
from ..scale_layouts.grouped import KGroups, k_groups

_PACKED_GRAN_K = 32


def attach(
    function: str,
    name: str,
    operand: Operand,
    sf: Tensor,
    gran_k: int,
    layout: KGroupLayout,
    real_sizes: tuple[int, ...] | None,
) -> Operand:
    """Return the operand with its scales.

    Args:
        sf: K first, [rows, mn]. float32: one row per gran_k elements of the data, gaps included, or (psum) only
            ceil(size / gran_k) rows per group. int32: four rows a word, every group starting a new word row. int16 and
            bytes: words, or bytes, at the positions of the data.
        real_sizes: group sizes if the host knows them. Otherwise only a backend that reads them on the device can tell
            apart rows that are not at the positions of the data.
    """
    if sf.ndim != 2 or sf.shape[1] != operand.mn:
        raise InvalidArgumentError(
            f"{function}: {name} has shape {validate.shape_of(sf)}, expected (rows, {operand.mn}): scales of k-grouped "
            f"operands are passed K first, one column per row of the product."
        )
    scale_format = format_of(sf.dtype)
    if scale_format is not None:
        rows = -(-operand.k // (gran_k * scale_format.per_word))
        is_in_place = gran_k == _PACKED_GRAN_K or scale_format is ScaleFormat.FP32
        spare = scale_format is ScaleFormat.UE8M0X4_INT32
        if is_in_place and (sf.shape[0] == rows or (spare and sf.shape[0] > rows)):
            data = sf[:rows].transpose(0, 1)
            return _with(operand, Scales(data, scale_format, 1, gran_k, operand.mn, operand.k))
        if scale_format is not ScaleFormat.UE8M0X2_INT16:
            return _moved(function, name, operand, sf, gran_k, layout, real_sizes, rows)
    # int16 words of another size and every foreign dtype: the general check accepts bytes and words the refusals.
    return validate.with_scales(function, name, operand, sf.transpose(0, 1), 1, gran_k, recipe_form="along_k")


def _moved(
    function: str,
    name: str,
    operand: Operand,
    sf: Tensor,
    gran_k: int,
    layout: KGroupLayout,
    real_sizes: tuple[int, ...] | None,
    rows: int,
) -> Operand:
    """Move rows that stand group after group to the positions of the data."""
    groups = _groups(sf, gran_k, layout, real_sizes)
    # Compact rows are never more than those at the positions of the data; on a device that is all the host can tell.
    has_place = _fits(sf, groups) if groups is not None else sf.dtype != torch.float32 or sf.shape[0] < rows
    backend = _registry.backend_of(sf)
    scales = backend.place_k_grouped_scales(sf, gran_k, operand.k, layout, groups, name) if has_place else None
    if scales is None:
        _refuse_rows(function, name, operand, sf, gran_k, rows, groups)
    return _with(operand, scales)


def _groups(sf: Tensor, gran_k: int, layout: KGroupLayout, real_sizes: tuple[int, ...] | None) -> KGroups | None:
    """Where the host can know the groups: plain sizes, a layout on the CPU, or real sizes given as ks_cpu."""
    if layout.kind == "plain":
        return k_groups(layout.ks, gran_k=gran_k)
    ends = layout.tensor
    if ends.device.type != "cpu":
        if real_sizes is None:
            return None
        ends, stop = torch.empty(len(real_sizes), dtype=torch.int32), 0
        for group, size in enumerate(real_sizes):
            stop = -(-stop // layout.alignment) * layout.alignment + size
            ends[group] = stop
    aligned = k_groups(None, ends, gran_k=gran_k, alignment=layout.alignment, use_psum_layout=True, is_compact=False)
    if _fits(sf, aligned):
        return aligned
    return k_groups(None, ends, gran_k=gran_k, alignment=layout.alignment, use_psum_layout=True, is_compact=True)


def _fits(sf: Tensor, groups: KGroups) -> bool:
    return sf.shape[0] == groups.num_rows if sf.dtype == torch.float32 else sf.shape[0] >= groups.num_words


def _refuse_rows(
    function: str, name: str, operand: Operand, sf: Tensor, gran_k: int, rows: int, groups: KGroups | None
) -> NoReturn:
    if groups is None:
        alternative = " (rows without gaps are accepted when the group sizes are given in ks_cpu)"
    elif sf.dtype == torch.float32:
        alternative = f", or {groups.num_rows} without rows for gaps (groups of {list(groups.sizes)})"
    else:
        rows, alternative = groups.num_words, f" (each of the groups of {list(groups.sizes)} starts a new word row)"
    raise InvalidArgumentError(
        f"{function}: {name} has {sf.shape[0]} rows (shape {validate.shape_of(sf)}), expected {rows}{alternative}: one "
        f"scale per {gran_k} elements of k={operand.k}. Check recipe=(1, 1, gran_k)."
    )


def _with(operand: Operand, scales: Scales) -> Operand:
    return Operand(operand.data, operand.kind, operand.mn, operand.k, operand.is_k_major, scales)
