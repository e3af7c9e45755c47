"""Block scales in the form GEMM kernels read: int16 words of two UE8M0 exponents along K, MN-major.

`scale_words` is the one door for every operation. No TileLang here; the program is in programs/scales.py.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor

from unikernels.operations.k_grouped import KGroupLayout
from unikernels.operations.m_grouped import GroupLayout
from unikernels.scale_layouts import (
    ScaleFormat,
    Scales,
    convert_scales,
    is_canonical,
    masked_valid_rows,
    psum_valid_rows,
)

from ..programs.gemm_variant import SCALE_BLOCK
from ..programs.variants import ScaleRows, ScaleSource, ScalesVariant
from ..runtime.executor import Executor, cores_in_use, executor_for
from ..runtime.kernel import Kernel

BLOCK_MN = 128
_SOURCES: dict[ScaleFormat, ScaleSource] = {
    ScaleFormat.FP32: "float32",
    ScaleFormat.UE8M0X2_INT16: "int16",
    ScaleFormat.UE8M0X4_INT32: "int32",
}


def scale_words(
    executor: Executor,
    scales: Scales,
    rows: GroupLayout | None = None,
    columns: KGroupLayout | None = None,
    name: str = "scales",
) -> Tensor:
    """Return int16 [ceil(k / 64), mn], or [num_groups, ceil(k / 64), mn], contiguous: two exponents along K an element.

    Scales that lie so already are returned without a copy or a launch, whatever `rows` says; not so with gaps along K,
    which a multiplication may touch.

    Args:
        scales: any format, strides and granularity along the rows; granularity 32 or 128 along K.
        rows: groups of A's rows: the scales of rows in no group are not read and become 0.
        columns: groups along K: scales of blocks in no group are not read and become 0.
        name: what messages call the tensor.
    Raises:
        InvalidArgumentError: on CPU tensors, a float32 scale that is read is no power of two; its place is named. On an
            NPU nothing waits for that answer: such a scale becomes exponent 255, NaN, and with it every result that
            depends on it; `refused_scales` reads the flag the kernel leaves.
    """
    masks_k = columns is not None and columns.kind == "psum"  # plain groups leave no gaps
    if scales.format is ScaleFormat.UE8M0X2_INT16 and not masks_k and is_canonical(scales):
        return _canonical(scales.data.mT)
    words, is_bad = _launch(executor, scales, rows, columns if masks_k else None)
    if words.is_cpu and is_bad.item():
        _refuse(scales, rows, columns, name)
    return words


def scales_per_row(scales: Scales, rows: GroupLayout) -> Scales | None:
    """Return int16 scales with one row per row of the matrix; those of rows in no group are not read and become 0.

    None for CPU tensors of which a float32 scale that is read is no power of two.
    """
    words, is_bad = _launch(executor_for(scales.data), scales, rows, None)
    return None if words.is_cpu and is_bad.item() else _scales_of(words, scales)


def _launch(
    executor: Executor, scales: Scales, rows: GroupLayout | None, columns: KGroupLayout | None
) -> tuple[Tensor, Tensor]:
    """Return what `scale_words` does, and the word a kernel sets if it reads a scale that is no power of two."""
    stored, is_k_major = as_stored(scales.data)
    num_blocks = -(-scales.k // SCALE_BLOCK)
    words = stored.new_empty((stored.shape[0], -(-num_blocks // 2), scales.mn), dtype=torch.int16)
    is_bad = bad_flag(words.device)
    rows_kind: ScaleRows = "all" if rows is None else rows.kind
    executor.run(
        Kernel("scales", _variant(scales, is_k_major, rows_kind, columns is not None, cores_in_use(executor))),
        stored.view(torch.int32) if scales.format is ScaleFormat.FP32 else stored,
        is_bad if rows is None else rows.tensor,
        is_bad if columns is None else columns.tensor,
        words,
        is_bad,
        num_blocks,
        scales.gran_mn,
        1 if rows is None else rows.alignment,
        1 if columns is None else columns.alignment,
    )
    return (words if scales.data.dim() == 3 else words[0]), is_bad


def _scales_of(words: Tensor, scales: Scales) -> Scales:
    return Scales(words.mT, ScaleFormat.UE8M0X2_INT16, 1, SCALE_BLOCK, scales.mn, scales.k)


def words_of_bytes(executor: Executor, exponents: Tensor) -> Tensor:
    """Return uint8 exponents [.., rows, blocks] as int16 [.., rows, ceil(blocks / 2)], strides (1, rows) at the end."""
    stored, is_k_major = as_stored(exponents)
    *leading, num_rows, num_blocks = exponents.shape
    words = exponents.new_empty((stored.shape[0], -(-num_blocks // 2), num_rows), dtype=torch.int16)
    unused = bad_flag(words.device)  # every byte is an exponent
    variant = ScalesVariant(
        source="uint8",
        is_k_major=is_k_major,
        repeat=1,
        has_blocks=False,
        rows="all",
        masks_k=False,
        block_mn=BLOCK_MN,
        block_words=32,
        num_cores=2 * cores_in_use(executor),
    )
    executor.run(Kernel("scales", variant), stored, unused, unused, words, unused, num_blocks, 1, 1, 1)
    return words.mT if leading else words[0].mT


def _variant(scales: Scales, is_k_major: bool, rows: ScaleRows, masks_k: bool, num_cores: int) -> ScalesVariant:
    assert scales.gran_k in (SCALE_BLOCK, 4 * SCALE_BLOCK), scales.gran_k  # what recipes allow
    repeat = scales.gran_k // SCALE_BLOCK
    return ScalesVariant(
        source=_SOURCES[scales.format],
        is_k_major=is_k_major,
        repeat=repeat,
        has_blocks=scales.gran_mn > 1,
        rows=rows,
        masks_k=masks_k,
        block_mn=BLOCK_MN,
        # Rows of a K-major tile are at least the 32 bytes that rows in UB are aligned to.
        block_words=64 if repeat > 1 and scales.format.is_packed else 32,
        num_cores=2 * num_cores,
    )


def psum_scale_words(scales: Scales, psum_layout: Tensor | None, alignment: int, name: str) -> Scales:
    """Return scales in the canonical int16 layout; rows of no group of `psum_layout`, if given, are not read."""
    rows = None if psum_layout is None else GroupLayout("psum", psum_layout, alignment)
    return _scales_of(scale_words(executor_for(scales.data), scales, rows, name=name), scales)


def k_grouped_scale_words(scales: Scales, psum_layout: Tensor, alignment: int, name: str) -> Tensor:
    """Return int16 [mn, ceil(k / 64)], strides (1, mn); scales of no group along K are not read."""
    columns = KGroupLayout("psum", psum_layout, alignment)
    return scale_words(executor_for(scales.data), scales, columns=columns, name=name).mT


def refused_scales(device: torch.device) -> bool:
    """Return whether a kernel has met float32 scales that are no powers of two on an NPU since the last call.

    Waits for the device. CPU tensors are checked when they are passed.
    """
    flag = _flag(device)
    found = bool(flag.item())
    flag.zero_()
    return found


def bad_flag(device: torch.device) -> Tensor:
    """Return the word a kernel sets when it meets bad scales: a new one where it is read at once, the kept one elsewhere."""
    return torch.zeros(1, dtype=torch.int32) if device.type == "cpu" else _flag(device)


@functools.cache
def _flag(device: torch.device) -> Tensor:
    """Word that kernels set and nothing but `refused_scales` reads or clears."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def as_stored(data: Tensor) -> tuple[Tensor, bool]:
    """Return scales as they lie in memory, [groups, rows, columns] or [groups, columns, rows], and whether K comes last.

    Strides of axes of length 1 say what the others do; a copy is made only if no axis is contiguous or rows overlap.
    """
    if data.dim() == 2:
        data = data.unsqueeze(0)
    (groups, num_rows, num_columns), (group_pitch, row_step, column_step) = data.shape, data.stride()
    if (row_step == 1 or num_rows == 1) and (column_step >= num_rows or num_columns == 1):
        pitch = num_rows if num_columns == 1 else column_step
        return data.as_strided((groups, num_columns, num_rows), (group_pitch, pitch, 1)), False
    if (column_step != 1 and num_columns > 1) or (row_step < num_columns and num_rows > 1):
        data = data.contiguous()
        group_pitch, row_step = num_rows * num_columns, num_columns
    pitch = num_columns if num_rows == 1 else row_step
    return data.as_strided((groups, num_rows, num_columns), (group_pitch, pitch, 1)), True


def _refuse(scales: Scales, rows: GroupLayout | None, columns: KGroupLayout | None, name: str) -> None:
    """Raise the error that names the first bad scale a kernel has read."""
    convert_scales(without_gaps(scales, rows, columns), ScaleFormat.UE8M0X2_INT16, name=name)
    raise AssertionError("the kernel refused scales that are powers of two")


def without_gaps(scales: Scales, rows: GroupLayout | None, columns: KGroupLayout | None) -> Scales:
    """Return float32 scales where those that belong to no group are 1; `rows` need one scale per row."""
    data = scales.data.clone()
    if rows is not None:
        data[~_valid_rows(rows, scales.mn)] = 1.0
    if columns is not None and columns.kind == "psum":
        valid = psum_valid_rows(columns.tensor, scales.k, columns.alignment)
        data[..., ~valid[:: scales.gran_k]] = 1.0
    return replace(scales, data=data)


def _valid_rows(rows: GroupLayout, mn: int) -> Tensor:
    if rows.kind == "psum":
        return psum_valid_rows(rows.tensor, mn, rows.alignment)
    return masked_valid_rows(rows.tensor, mn) if rows.kind == "masked" else rows.tensor >= 0


def _canonical(words: Tensor) -> Tensor:
    """Return words that lie contiguous with strides that say so even along axes of length 1."""
    return words.as_strided(words.shape, torch.empty(words.shape, device="meta").stride())
