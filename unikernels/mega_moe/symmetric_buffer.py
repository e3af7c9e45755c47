"""SymmBuffer: the memory a group of ranks communicates through, its views, and the start of a collective call.

Contract: DeepGEMM 2.8.2, section Mega MoE. What lies where is in layout.py, agreement of ranks in rendezvous.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _registry
from ..errors import ArgumentTypeError, InvalidArgumentError, UnikernelsError
from . import layout
from .rendezvous import Rendezvous, channel_of, float_bits, rank_and_size
from .sizes import MMA_TYPES, MegaMoeSizes, checked_sizes

_FUNCTION = "SymmBuffer"
_num_buffers = 0


@dataclass(frozen=True, slots=True)
class SymmetricHandle:
    """Where the buffer of each rank begins.

    Attributes:
        buffer_ptrs: one address per rank; only those a backend maps into this process can be followed (CPU: its own).
    """

    buffer_ptrs: tuple[int, ...]


class SymmBuffer:
    """Memory of one Mega MoE layer: inputs the caller fills, workspaces, and partial results of all slots.

    Construction is collective: every rank of `group` constructs with equal arguments, in the same order as its other
    calls on the group. A group of one rank needs no communication, and None is a group of this process alone, whether
    torch.distributed runs or not. Memory starts zeroed.

    Args:
        group: torch.distributed process group, or None.
        num_experts: E, a multiple of the number of ranks R; expert e lives on rank e // (E / R).
        num_max_tokens_per_rank: most tokens of one rank in a call; rounded up to the backend's alignment (CPU: 8) as Tm.
        num_topk: K, slots per token.
        hidden, intermediate_hidden: H and I, multiples of 128.
        num_shared_experts: Ns; the shared experts form one MLP of width Is = Ns * I on every rank.
        mma_type: 'fp8xfp4', 'fp8xfp8' or 'bf16xbf16', activations first.
        activation: 'swiglu'.
        base: another live buffer of the same group whose memory is used instead of new memory; it is not zeroed. Calls
            on both must not overlap in time, and inputs are refilled before each.

    Attributes:
        every constructor argument; `num_max_tokens_per_rank` is Tm.
        rank, num_ranks: of this process in `group`; channel: gloo group of the same ranks for CPU tensors, None for one.
        buffer: int8 [num_bytes]; handle: has `buffer_ptrs`, one address per rank.
        num_bytes: the formula is in `unikernels.mega_moe.layout.regions`; linear in Tm.
        x: [Tm, H] float8_e4m3fn or bfloat16, filled by the caller, as are x_sf, topk_idx and topk_weights.
        x_sf: [Tm, H/128] int32, row-major, four UE8M0 per word, one per 32 columns (empty for BF16).
        topk_idx: [Tm, K] int64, -1 = no expert. topk_weights: [Tm, K] float32.
        shared_l1_acts: x. shared_l1_acts_sf: [Sm, H/128] int32, strides (1, Sm), Sm = ceil(Tm/8)*128; filled by the
            caller if Ns > 0 and FP8. Token t is row `(t//B)*align(B,128) + (i//128)*128 + (i%32)*4 + (i%128)//32` with
            i = t % B and B = get_block_m_for_mega_moe(R, E, Tm, num_tokens, K, mma_type). Empty otherwise.
        shared_l2_acts: [Tm, Is]; shared_l2_acts_sf: [Sm, Is/128], likewise; written by the call.
        l1_acts, l1_acts_sf, l2_acts, l2_acts_sf: workspaces of the backend's own size (CPU: zero rows, it needs none).

    Raises:
        InvalidArgumentError: a size breaks a limit, or `base` does not fit; with several ranks all of them raise.
        UnikernelsError: the ranks' arguments differ, or a rank cannot be reached.

    Example:
        >>> import unikernels as uk
        >>> with uk.use_backend("cpu"):
        ...     buffer = uk.SymmBuffer(None, 8, 60, 2, 256, 128)
        >>> buffer.num_max_tokens_per_rank, tuple(buffer.x.shape), buffer.x_sf.dtype
        (64, (64, 256), torch.int32)

    Contract: DeepGEMM 2.8.2, `SymmBuffer` (7th parameter: `num_shared_experts`).
    """

    x: Tensor
    x_sf: Tensor
    topk_idx: Tensor
    topk_weights: Tensor
    shared_l1_acts: Tensor
    shared_l1_acts_sf: Tensor
    shared_l2_acts: Tensor
    shared_l2_acts_sf: Tensor
    l1_acts: Tensor
    l1_acts_sf: Tensor
    l2_acts: Tensor
    l2_acts_sf: Tensor

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        num_shared_experts: int = 0,
        mma_type: str = "fp8xfp4",
        activation: str = "swiglu",
        base: SymmBuffer | None = None,
    ) -> None:
        self.rank, self.num_ranks = rank_and_size(_FUNCTION, group)
        self.channel: Any = channel_of(_FUNCTION, group)
        self._rendezvous = Rendezvous(self.channel)
        self._num_calls = 0
        self.group: Any = group
        self.activation, self.mma_type, self.base = activation, mma_type, base
        with self.refusals_announced(_FUNCTION):
            backend = _registry.current_backend()
            sizes = checked_sizes(
                _FUNCTION, self.num_ranks, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden,
                num_shared_experts, mma_type, activation,
            )  # fmt: skip
            alignment = backend.mega_moe_token_alignment
            sizes = replace(sizes, num_max_tokens_per_rank=-(-sizes.num_max_tokens_per_rank // alignment) * alignment)
            self.sizes: MegaMoeSizes = sizes
            self.regions = backend.mega_moe_regions(sizes)
            self.num_bytes = layout.total_bytes(self.regions)
            if base is not None:
                self._check_base(base)
        self._id = self._agree_on_construction()
        self._take_sizes(sizes)
        if base is None:
            allocate: Callable[[int, Any], tuple[Tensor, tuple[int, ...]]] = backend.symmetric_memory
            memory, addresses = allocate(self.num_bytes, group)
            self.buffer: Tensor = memory
            self.handle: Any = SymmetricHandle(addresses)
        else:
            self.buffer, self.handle = base.buffer[: self.num_bytes], base.handle
        found = layout.views(self.buffer, self.regions)
        self._slots: Tensor | None = found["combine_slots"]
        for name in layout.VIEWS:
            setattr(self, name, found[name])

    def _take_sizes(self, sizes: MegaMoeSizes) -> None:
        self.num_experts, self.num_topk = sizes.num_experts, sizes.num_topk
        self.num_max_tokens_per_rank = sizes.num_max_tokens_per_rank
        self.hidden, self.intermediate_hidden = sizes.hidden, sizes.intermediate_hidden
        self.num_shared_experts = sizes.num_shared_experts

    def _check_base(self, base: object) -> None:
        if not isinstance(base, SymmBuffer):
            raise ArgumentTypeError(f"{_FUNCTION}: base is a {type(base).__name__}, expected a SymmBuffer or None.")
        base.require_live(_FUNCTION, "base")
        if base.group is not self.group:
            raise InvalidArgumentError(
                f"{_FUNCTION}: base belongs to another group. Buffers share memory within one group."
            )
        if base.buffer.numel() < self.num_bytes:
            raise InvalidArgumentError(
                f"{_FUNCTION}: base has {base.buffer.numel()} bytes, this buffer needs {self.num_bytes}. Construct the "
                f"larger one first and use it as base."
            )

    def _agree_on_construction(self) -> int:
        """Compare all arguments between ranks and return an id that all of them give this buffer."""
        global _num_buffers
        sizes = self.sizes
        fields = {
            "num_experts": sizes.num_experts,
            "num_max_tokens_per_rank (rounded)": sizes.num_max_tokens_per_rank,
            "num_topk": sizes.num_topk,
            "hidden": sizes.hidden,
            "intermediate_hidden": sizes.intermediate_hidden,
            "num_shared_experts": sizes.num_shared_experts,
            f"mma_type (place in {tuple(MMA_TYPES)})": list(MMA_TYPES).index(sizes.mma_type),
            "base (number of the buffer, -1 = None)": -1 if self.base is None else self.base._id,
            "num_bytes (same backend?)": self.num_bytes,
        }
        _num_buffers = max(self._rendezvous.agree(_FUNCTION, fields, _num_buffers)) + 1
        return _num_buffers - 1

    def require_live(self, function: str, name: str = "sym_buffer") -> None:
        """Refuse a destroyed buffer."""
        if self._slots is None:
            raise InvalidArgumentError(f"{function}: {name} has been destroyed. Construct a new buffer.")

    @property
    def combine_slots(self) -> Tensor:
        """Partial results, bfloat16 [K + (Ns > 0), Tm, H], the shared experts' last. Private to backends."""
        assert self._slots is not None
        return self._slots

    @contextmanager
    def refusals_announced(self, function: str) -> Iterator[None]:
        """Tell the other ranks about an error raised inside, so that they raise as well instead of waiting."""
        try:
            yield
        except UnikernelsError as error:
            self._num_calls += 1
            self._rendezvous.refuse(function, str(error))
            raise

    def meet(self, function: str, num_tokens: int, has_shared: bool, activation_clamp: float | None) -> list[int]:
        """Begin a call on all ranks and return every rank's number of tokens."""
        self._num_calls += 1
        fields = {
            "sym_buffer (number of the buffer)": self._id,
            "number of calls on sym_buffer": self._num_calls,
            "use of shared weights": int(has_shared),
            "activation_clamp (inf = None)": float_bits(float("inf") if activation_clamp is None else activation_clamp),
        }
        return self._rendezvous.agree(function, fields, num_tokens)

    def destroy(self) -> None:
        """Drop the memory, the views and the group; may be called twice. Not collective. Calls then refuse this buffer.

        Memory that another buffer uses as its `base` lives on in that one.
        """
        self._slots = None
        for name in ("buffer", "handle", "group", "channel", "base", *layout.VIEWS):
            setattr(self, name, None)
        self._rendezvous = Rendezvous(None)


def ordinary_memory(num_bytes: int, group: Any, device: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """Return zeroed memory of this process and the addresses all ranks have theirs at, once all have it."""
    memory = torch.zeros(num_bytes, dtype=torch.int8, device=device)
    address = torch.tensor([memory.data_ptr()])
    channel = channel_of(_FUNCTION, group)
    if channel is None:
        return memory, (memory.data_ptr(),)
    gathered = [torch.empty_like(address) for _ in range(dist.get_world_size(channel))]
    dist.all_gather(gathered, address, group=channel)
    return memory, tuple(int(one.item()) for one in gathered)
