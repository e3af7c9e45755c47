"""The one door to scale bytes: the C++ packer for CPU tensors, torch_packing for everything else.

Tensors here are bare [.., rows, columns] arrays of floats, bytes or words; layouts are decided by the callers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import torch_packing

try:
    from ._packer import transcode as _transcode_native
except ModuleNotFoundError:  # a pure-Python wheel (UNIKERNELS_PURE=1) has no native modules
    HAS_NATIVE_PACKER = False
else:
    HAS_NATIVE_PACKER = True

# How the packer tells element kinds apart: floats are 0, integers are their size in bytes, -1 stands for no sink.
_KIND = {torch.float32: 0, torch.uint8: 1, torch.int16: 2, torch.int32: 4}


def transcode(
    source: Tensor,
    num_blocks: int,
    sink: Tensor | None,
    sink_blocks: int,
    *,
    gran_mn: int = 1,
    k_repeat: int = 1,
    valid_rows: Tensor | None = None,
) -> int:
    """Write scale (i // gran_mn, j // k_repeat) of `source` to place (i, j) of `sink`.

    Args:
        source: [.., rows, columns] float32, or uint8, int16, int32 holding UE8M0 bytes, low byte first; any strides.
        num_blocks: scales along the last axis of `source` (its words may hold more bytes; those are not read).
        sink: [.., mn, words] of the same dtypes, any strides; None only checks the values of `source`. Bytes past
            `sink_blocks` in the last word become 0.
        sink_blocks: scales to write along the last axis, at most num_blocks * k_repeat.
        valid_rows: bool [.., mn]; where False, `source` is not read and exponent 0 is written.

    Returns:
        -1, or the row-major index in [.., rows, num_blocks] of the first float32 scale that is no power of two
        from 2^-127 to 2^127 (zero counts as byte 0). `sink` holds rubbish then.
    """
    if not HAS_NATIVE_PACKER or source.device.type != "cpu":
        return torch_packing.transcode(
            source, num_blocks, sink, sink_blocks, gran_mn=gran_mn, k_repeat=k_repeat, valid_rows=valid_rows
        )
    groups, rows, source_strides, source = _as_groups(source)
    mask = 0
    if valid_rows is not None:
        valid_rows = valid_rows.contiguous()
        mask = valid_rows.data_ptr()
    kind, pointer, mn, sink_strides = -1, 0, rows, (0, 0, 0)
    if sink is not None:
        _, mn, sink_strides, sink = _as_groups(sink)
        kind, pointer = _KIND[sink.dtype], sink.data_ptr()
    return _transcode_native(
        source.data_ptr(),
        _KIND[source.dtype],
        (groups, rows, num_blocks),
        source_strides,
        pointer,
        kind,
        (mn, sink_blocks),
        sink_strides,
        gran_mn,
        k_repeat,
        mask,
        torch.get_num_threads(),
    )


def _as_groups(tensor: Tensor) -> tuple[int, int, tuple[int, int, int], Tensor]:
    """Return (groups, rows, strides of three dimensions, the tensor they describe); most tensors stay as they are."""
    if tensor.dim() == 2:
        row_stride, column_stride = tensor.stride()
        return 1, tensor.shape[0], (0, row_stride, column_stride), tensor
    if tensor.dim() > 3:
        tensor = tensor.flatten(0, -3)
    group_stride, row_stride, column_stride = tensor.stride()
    return tensor.shape[0], tensor.shape[1], (group_stride, row_stride, column_stride), tensor
