"""The sizes of one Mega MoE layer, their limits, and the token tile that follows from them; no tensors.

Contract: DeepGEMM 2.8.2, section Mega MoE. Memory that follows from the sizes is in layout.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..errors import InvalidArgumentError
from ..operations.operands import Kind
from ..validate_plain import integer

#: mma_type -> (element kind of activations and shared weights, element kind of routed weights).
MMA_TYPES: dict[str, tuple[Kind, Kind]] = {
    "fp8xfp4": ("fp8", "fp4"),
    "fp8xfp8": ("fp8", "fp8"),
    "bf16xbf16": ("bf16", "bf16"),
}

_SIZE_MULTIPLE = 128
_MAX_RANKS = 72
_MAX_EXPERTS = 2048
_MAX_LOCAL_EXPERTS = 512
_MAX_SLOTS = 32


@dataclass(frozen=True, slots=True)
class MegaMoeSizes:
    """Sizes of a layer and its buffer, checked; the names are those of the constructor of SymmBuffer."""

    num_ranks: int
    num_experts: int
    num_max_tokens_per_rank: int
    num_topk: int
    hidden: int
    intermediate_hidden: int
    num_shared_experts: int
    mma_type: str
    activation: str

    @property
    def num_local_experts(self) -> int:
        """Experts per rank; expert e lives on rank e // num_local_experts."""
        return self.num_experts // self.num_ranks

    @property
    def shared_intermediate_hidden(self) -> int:
        """Width of the one MLP that all shared experts form."""
        return self.num_shared_experts * self.intermediate_hidden

    @property
    def num_slots(self) -> int:
        """Partial results per token: one per top-k slot, and one of the shared experts."""
        return self.num_topk + (self.num_shared_experts > 0)

    @property
    def is_quantised(self) -> bool:
        """Whether activations are FP8 with scales."""
        return self.mma_type.startswith("fp8")

    @property
    def activation_dtype(self) -> torch.dtype:
        """Element type of x and of the activations between the two products."""
        return torch.float8_e4m3fn if self.is_quantised else torch.bfloat16


def checked_mma_type(function: str, mma_type: object) -> str:
    """Refuse an unknown mma_type."""
    if not isinstance(mma_type, str) or mma_type not in MMA_TYPES:
        raise InvalidArgumentError(
            f"{function}: mma_type is {mma_type!r}, expected one of {', '.join(map(repr, MMA_TYPES))}."
        )
    return mma_type


def checked_activation(function: str, activation: object) -> str:
    """Refuse every activation but SwiGLU."""
    if activation != "swiglu":
        raise InvalidArgumentError(
            f"{function}: activation is {activation!r}, expected 'swiglu', the only one there is."
        )
    return "swiglu"


def checked_sizes(
    function: str,
    num_ranks: int,
    num_experts: object,
    num_max_tokens_per_rank: object,
    num_topk: object,
    hidden: object,
    intermediate_hidden: object,
    num_shared_experts: object,
    mma_type: object,
    activation: object,
) -> MegaMoeSizes:
    """Check every size against the contract's limits."""
    sizes = MegaMoeSizes(
        integer(function, "num_ranks", num_ranks, 1, _MAX_RANKS),
        integer(function, "num_experts", num_experts, 1, _MAX_EXPERTS),
        integer(function, "num_max_tokens_per_rank", num_max_tokens_per_rank, 1),
        integer(function, "num_topk", num_topk, 1),
        integer(function, "hidden", hidden, 1),
        integer(function, "intermediate_hidden", intermediate_hidden, 1),
        integer(function, "num_shared_experts", num_shared_experts, 0),
        checked_mma_type(function, mma_type),
        checked_activation(function, activation),
    )
    for name in ("hidden", "intermediate_hidden"):
        if getattr(sizes, name) % _SIZE_MULTIPLE:
            raise InvalidArgumentError(
                f"{function}: {name} is {getattr(sizes, name)}, expected a multiple of {_SIZE_MULTIPLE}: one word of "
                f"scales covers {_SIZE_MULTIPLE} columns. Pad the weights with zeros."
            )
    if sizes.num_experts % num_ranks:
        raise InvalidArgumentError(
            f"{function}: num_experts is {num_experts} on {num_ranks} ranks, expected a multiple of the number of ranks: "
            f"every rank holds equally many experts."
        )
    if sizes.num_local_experts > _MAX_LOCAL_EXPERTS:
        raise InvalidArgumentError(
            f"{function}: num_experts is {num_experts} on {num_ranks} ranks, that is {sizes.num_local_experts} experts on "
            f"each, expected at most {_MAX_LOCAL_EXPERTS}. Use more ranks."
        )
    if sizes.num_slots > _MAX_SLOTS:
        raise InvalidArgumentError(
            f"{function}: num_topk is {num_topk}{' plus one slot for shared experts' if num_shared_experts else ''}, "
            f"expected at most {_MAX_SLOTS} in all."
        )
    return sizes


def block_m(num_ranks: int, num_experts: int, num_tokens: int, num_topk: int) -> int:
    """Return the token tile of a call: it decides where the scales of shared experts' inputs stand.

    With the mean number x of tokens per expert: 16 up to 10, 32 up to 24, else the smallest of 64, 128, 192, 240 that
    covers x + sqrt(x) in the fewest tiles.
    """
    mean = num_tokens * num_ranks * num_topk / num_experts
    if mean <= 10:
        return 16
    if mean <= 24:
        return 32
    likely = mean + math.sqrt(mean)
    num_tiles = math.ceil(likely / 240)
    # With few experts per rank two smaller tiles fill the machine better than one large one.
    if num_tiles == 1 and likely > 192 and num_experts / num_ranks < 14:
        num_tiles = 2
    return next((tile for tile in (64, 128, 192, 240) if num_tiles * tile >= likely), 240)
