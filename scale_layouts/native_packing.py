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
    source = _three_dimensional(source)
    groups, rows, _ = source.shape
    mask = 0
    if valid_rows is not None:
        valid_rows = valid_rows.contiguous()
        mask = valid_rows.data_ptr()
    if sink is None:
        kind, pointer, mn, strides = -1, 0, rows, (0, 0, 0)
    else:
        sink = _three_dimensional(sink)
        kind, pointer, mn, strides = _KIND[sink.dtype], sink.data_ptr(), sink.shape[1], sink.stride()
    return _transcode_native(
        source.data_ptr(),
        _KIND[source.dtype],
        (groups, rows, num_blocks),
        source.stride(),
        pointer,
        kind,
        (mn, sink_blocks),
        strides,
        gran_mn,
        k_repeat,
        mask,
        torch.get_num_threads(),
    )


def _three_dimensional(tensor: Tensor) -> Tensor:
    if tensor.dim() == 3:
        return tensor
    return tensor.unsqueeze(0) if tensor.dim() == 2 else tensor.flatten(0, -3)
