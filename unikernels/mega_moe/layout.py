"""What lies where in the memory of a Mega MoE buffer: regions, their total size, and the views onto them.

A backend may add private regions or resize the l1 and l2 workspaces; who allocates the memory is in
symmetric_buffer.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _registry
from ..scale_layouts import ScaleFormat
from .sizes import MegaMoeSizes, checked_sizes

#: Every region starts at a multiple of this many bytes: no view shares a cache line with another.
_REGION_ALIGNMENT = 128
#: Columns per scale of every activation.
GRAN_K = 32
#: Rows of shared experts' scales per 8 tokens: the smallest token tile is 8, its scales take 128 rows.
_SHARED_TILE, _SHARED_TILE_ROWS = 8, 128

#: The views of the contract, in its order; `shared_l1_acts` is `x` itself.
VIEWS = (
    "x", "x_sf", "topk_idx", "topk_weights", "shared_l1_acts", "shared_l1_acts_sf", "shared_l2_acts",
    "shared_l2_acts_sf", "l1_acts", "l1_acts_sf", "l2_acts", "l2_acts_sf",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Region:
    """One array inside the buffer; `is_mn_major` stores a matrix with unit stride along its rows."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_mn_major: bool = False

    @property
    def num_bytes(self) -> int:
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count

    @property
    def aligned_bytes(self) -> int:
        return -(-self.num_bytes // _REGION_ALIGNMENT) * _REGION_ALIGNMENT


def regions(sizes: MegaMoeSizes, scale_format: ScaleFormat, num_ring_rows: int = 0) -> tuple[Region, ...]:
    """Return the regions of a buffer.

    Bytes, with Tm tokens, K slots, hidden H, shared width Is, e bytes per activation (1 for FP8, 2 for BF16): x Tm*H*e,
    topk_idx 8*Tm*K, topk_weights 4*Tm*K, combine slots 2*Tm*H*(K + (Is > 0)), shared L2 activations Tm*Is*e, and for FP8
    the scales x_sf Tm*H/32 and, with shared experts, 16*Tm*(H + Is)/32; all are linear in Tm. Every region is rounded up
    to 128 bytes.

    Args:
        num_ring_rows: rows of the l1 and l2 workspaces.
    """
    tokens, hidden, width = sizes.num_max_tokens_per_rank, sizes.hidden, sizes.intermediate_hidden
    shared_width, acts, words = sizes.shared_intermediate_hidden, sizes.activation_dtype, scale_format.dtype
    per_word = GRAN_K * scale_format.per_word
    has_scales = sizes.is_quantised
    shared_rows = -(-tokens // _SHARED_TILE) * _SHARED_TILE_ROWS if has_scales and shared_width else 0
    ring_scale_rows = num_ring_rows if has_scales else 0
    return (
        Region("x", (tokens, hidden), acts),
        Region("x_sf", (tokens if has_scales else 0, hidden // per_word), words),
        Region("topk_idx", (tokens, sizes.num_topk), torch.int64),
        Region("topk_weights", (tokens, sizes.num_topk), torch.float32),
        Region("shared_l1_acts_sf", (shared_rows, hidden // per_word), words, is_mn_major=True),
        Region("shared_l2_acts", (tokens, shared_width), acts),
        Region("shared_l2_acts_sf", (shared_rows, shared_width // per_word), words, is_mn_major=True),
        Region("l1_acts", (num_ring_rows, hidden), acts),
        Region("l1_acts_sf", (ring_scale_rows, hidden // per_word), words, is_mn_major=True),
        Region("l2_acts", (num_ring_rows, width), acts),
        Region("l2_acts_sf", (ring_scale_rows, width // per_word), words, is_mn_major=True),
        Region("combine_slots", (sizes.num_slots, tokens, hidden), torch.bfloat16),
    )


def total_bytes(parts: tuple[Region, ...]) -> int:
    """Return the bytes of all regions with their alignment."""
    return sum(region.aligned_bytes for region in parts)


def views(buffer: Tensor, parts: tuple[Region, ...]) -> dict[str, Tensor]:
    """Return the views of all regions of an int8 buffer by name, `shared_l1_acts` among them."""
    found: dict[str, Tensor] = {}
    start = 0
    for region in parts:
        found[region.name] = _view(buffer[start : start + region.num_bytes], region)
        start += region.aligned_bytes
    found["shared_l1_acts"] = found["x"]
    return found


def _view(memory: Tensor, region: Region) -> Tensor:
    shape = (*region.shape[:-2], region.shape[-1], region.shape[-2]) if region.is_mn_major else region.shape
    if region.num_bytes:
        array = memory.view(region.dtype).view(shape)
    else:  # torch refuses to reinterpret nothing
        array = torch.empty(shape, dtype=region.dtype, device=memory.device)
    return array.transpose(-1, -2) if region.is_mn_major else array


def get_token_alignment_for_mega_moe() -> int:
    """Return what the token limit of a buffer is rounded up to by the backend in force (CPU: 8).

    Contract: DeepGEMM 2.8.2, binding level (CUDA: 1920).
    """
    return _registry.current_backend().mega_moe_token_alignment


def get_symm_buffer_size_for_mega_moe(
    num_ranks: int,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    mma_type: str,
    activation: str,
    num_shared_experts: int = 0,
) -> tuple[int, Callable[[Tensor], tuple[Tensor, ...]]]:
    """Return (bytes of a buffer, function from an int8 buffer to its views in the contract's order).

    The limit is taken as it is; `SymmBuffer` rounds it up first.

    Raises:
        InvalidArgumentError: a size breaks a limit.

    Contract: DeepGEMM 2.8.2, binding level.
    """
    sizes = checked_sizes(
        "get_symm_buffer_size_for_mega_moe",
        num_ranks, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden, num_shared_experts,
        mma_type, activation,
    )  # fmt: skip
    parts = _registry.current_backend().mega_moe_regions(sizes)

    def slicer(buffer: Tensor) -> tuple[Tensor, ...]:
        found = views(buffer, parts)
        return tuple(found[name] for name in VIEWS)

    return total_bytes(parts), slicer
