"""Scales that stand group after group along K, as words at the positions of the data. No TileLang here.

Which rows are whose is read from the layout on the device. The program is in programs/k_grouped_scales.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unikernels.operations.k_grouped import KGroupLayout
from unikernels.scale_layouts import ScaleFormat, Scales

from ..programs.gemm_variant import SCALE_BLOCK
from ..programs.variants import KGroupedScalesVariant
from ..runtime.executor import Executor, cores_in_use, executor_for
from ..runtime.kernel import Kernel
from .scales import BLOCK_MN, as_stored, bad_flag

_BLOCK_WORDS = 16


def placed_scales(sf: Tensor, gran_k: int, k: int, layout: KGroupLayout) -> Scales | None:
    """Return scales of one [mn, k] matrix in the form kernels read; None as for `placed_scale_words`."""
    words = placed_scale_words(executor_for(sf), sf, gran_k, k, layout)
    return None if words is None else Scales(words.mT, ScaleFormat.UE8M0X2_INT16, 1, SCALE_BLOCK, sf.shape[1], k)


def placed_scale_words(executor: Executor, sf: Tensor, gran_k: int, k: int, layout: KGroupLayout) -> Tensor | None:
    """Return int16 [ceil(k / 64), mn], contiguous: two exponents along K an element, 0 for blocks of no group.

    Args:
        sf: K first, [rows, mn], any strides: float32 with one row per scale, or int32 with four rows a word, every group
            starting a new one. With prefix sums the row count says whether groups own rows for their size rounded up to
            the alignment or, if that does not fit, for the size itself (2.6.1).
        gran_k: 32 or 128.
        layout: the groups.

    Returns:
        None for CPU tensors that hold a float32 scale that is no power of two, or too few rows. On an NPU nothing waits for
        that answer: such a scale becomes 255, NaN, and sets the flag of `scales.refused_scales`.
    """
    source, is_k_major = as_stored(sf.mT)
    words = sf.new_empty((-(-k // (2 * SCALE_BLOCK)), sf.shape[1]), dtype=torch.int16)
    is_bad = bad_flag(sf.device)
    variant = KGroupedScalesVariant(
        source="float32" if sf.dtype is torch.float32 else "int32",
        is_k_first=not is_k_major,
        layout=layout.kind,
        block_mn=BLOCK_MN,
        block_words=_BLOCK_WORDS,
        num_cores=2 * cores_in_use(executor),
    )
    executor.run(
        Kernel("k_grouped_scales", variant),
        source[0].view(torch.int32),
        layout.tensor,
        words,
        is_bad,
        gran_k,
        layout.alignment,
    )
    return None if words.is_cpu and is_bad.item() else words
