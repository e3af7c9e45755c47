"""Cases of Mega MoE in one process: element types, shared experts, clamp, masked slots, empty and uneven routing.

Calls over several ranks need several processes and are tested apart (tests/test_mega_moe_ranks.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..mega_moe.sizes import MMA_TYPES
from ..utils import pack_ue8m0_to_int, per_token_cast_to_fp4, per_token_cast_to_fp8
from .base import Case, Cost, Tensors
from .case_inputs import randn
from .mega_mhc import shared_scale_rows

#: Leaving out one bf16 rounding of gate and up costs 1.3e-6; one E4M3 code across a tie, in the smallest case, 1.4e-7.
_TOLERANCE = 1e-6
_BYTES = {"fp4": 0.5 + 1 / 32, "fp8": 1 + 1 / 32, "bf16": 2.0}


@dataclass(frozen=True, slots=True)
class _Layer:
    """Parameters of one case; `masked` is the share of slots without an expert."""

    mma_type: str
    num_tokens: int
    num_experts: int
    num_topk: int
    hidden: int
    intermediate: int
    num_shared: int = 0
    clamp: float | None = None
    masked: float = 0.0
    has_stats: bool = True

    @property
    def id(self) -> str:
        extras = [f"shared{self.num_shared}"] * (self.num_shared > 0) + ["clamp"] * (self.clamp is not None)
        extras += ["masked"] * (self.masked > 0) + ["nostats"] * (not self.has_stats)
        sizes = f"t={self.num_tokens}-e={self.num_experts}-k={self.num_topk}-h={self.hidden}-i={self.intermediate}"
        return "-".join([self.mma_type, *extras, sizes])

    def build(self, generator: torch.Generator) -> Tensors:
        act_kind, weight_kind = MMA_TYPES[self.mma_type]
        tokens, hidden, width, experts = self.num_tokens, self.hidden, self.intermediate, self.num_experts
        t: Tensors = {}
        _store(t, "x", randn(generator, tokens, hidden), act_kind)
        t["topk_idx"] = torch.randint(experts, (tokens, self.num_topk), generator=generator)
        is_masked = torch.rand(tokens, self.num_topk, generator=generator) < self.masked
        t["topk_idx"].masked_fill_(is_masked, -1)
        t["topk_weights"] = torch.rand(tokens, self.num_topk, generator=generator)
        # Gates and ups of order one, so that the clamp and the curvature of SwiGLU matter.
        _store(t, "l1", randn(generator, experts, 2 * width, hidden) * (1.5 / hidden**0.5), weight_kind)
        _store(t, "l2", randn(generator, experts, hidden, width) * (1.5 / width**0.5), weight_kind)
        if self.num_shared:
            shared = self.num_shared * width
            _store(t, "shared_l1", randn(generator, 2 * shared, hidden) * (1.5 / hidden**0.5), act_kind)
            _store(t, "shared_l2", randn(generator, hidden, shared) * (1.5 / shared**0.5), act_kind)
        t["stats"] = torch.arange(experts, dtype=torch.int32)
        t["y"] = torch.full((tokens, hidden), 7.0, dtype=torch.bfloat16)
        return t

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        buffer = uk.get_symm_buffer_for_mega_moe(
            None, self.num_experts, max(self.num_tokens, 1), self.num_topk, self.hidden, self.intermediate,
            self.num_shared, mma_type=self.mma_type,
        )  # fmt: skip
        count = self.num_tokens
        buffer.x[:count] = t["x"]
        buffer.topk_idx[:count] = t["topk_idx"]
        buffer.topk_weights[:count] = t["topk_weights"]
        if "x_sf" in t:
            # Exponent bytes run along K in every packed format: the backend's words are a view of these.
            words = t["x_sf"].contiguous().view(buffer.x_sf.dtype)
            buffer.x_sf[:count] = words
            if self.num_shared:
                tile = uk.get_block_m_for_mega_moe(
                    1, self.num_experts, buffer.num_max_tokens_per_rank, count, self.num_topk, self.mma_type
                )
                buffer.shared_l1_acts_sf[shared_scale_rows(count, tile, t["x"].device)] = words
        l1, l2 = uk.transform_weights_for_mega_moe(_weights(t, "l1"), _weights(t, "l2"))
        arguments: dict[str, Any] = {"activation_clamp": self.clamp}
        if self.num_shared:
            arguments["shared_l1_weights"], arguments["shared_l2_weights"] = uk.transform_weights_for_mega_moe(
                _weights(t, "shared_l1"), _weights(t, "shared_l2")
            )
        if self.has_stats:
            arguments["cumulative_local_expert_recv_stats"] = t["stats"]
        function = uk.bf16_mega_moe if self.mma_type == "bf16xbf16" else uk.fp8_fp4_mega_moe
        function(t["y"], l1, l2, buffer, **arguments)
        buffer.destroy()
        return {"y": t["y"], "stats": t["stats"]}

    def cost(self) -> Cost:
        act_kind, weight_kind = MMA_TYPES[self.mma_type]
        one = 3.0 * self.hidden * self.intermediate
        pairs = self.num_tokens * self.num_topk * (1 - self.masked)
        used = self.num_experts * (1 - (1 - 1 / self.num_experts) ** pairs)
        moved = used * one * _BYTES[weight_kind] + self.num_shared * one * _BYTES[act_kind]
        moved += self.num_tokens * self.hidden * (_BYTES[act_kind] + 2)
        return Cost(2.0 * one * (pairs + self.num_tokens * self.num_shared), moved)

    def case(self, *levels: str) -> Case:
        return Case(
            id=self.id,
            labels={
                "dtype": self.mma_type,
                "layout": f"shared={self.num_shared}",
                "shape": f"{self.num_tokens}x{self.hidden}x{self.intermediate}, {self.num_topk} of {self.num_experts}",
            },
            build=self.build,
            run=self.run,
            tolerance=_TOLERANCE,
            cost=self.cost(),
            levels=frozenset(levels),
        )


def _store(t: Tensors, name: str, values: Tensor, kind: str) -> None:
    """Store a matrix or a batch of matrices in an element format, scales as `name`_sf."""
    if kind == "bf16":
        t[name] = values.bfloat16()
        return
    cast = per_token_cast_to_fp4 if kind == "fp4" else per_token_cast_to_fp8
    data, scales = cast(values.flatten(0, -2), True, 32)
    words = pack_ue8m0_to_int(scales)
    leading = values.shape[:-1]
    t[name] = data.view(*leading, data.shape[-1])
    # Weight scales are MN-major; those of x row-major.
    words = words.view(*leading, words.shape[-1])
    t[f"{name}_sf"] = words if name == "x" else words.mT.contiguous().mT


def _weights(t: Tensors, name: str) -> Tensor | tuple[Tensor, Tensor]:
    return (t[name], t[f"{name}_sf"]) if f"{name}_sf" in t else t[name]


def _smoke() -> Iterator[Case]:
    for mma_type in MMA_TYPES:
        yield _Layer(mma_type, 37, 6, 3, 256, 128).case("smoke", "full")
        yield _Layer(mma_type, 20, 4, 2, 128, 256, num_shared=1, clamp=1.0, masked=0.3).case("smoke", "full")


def _edge() -> Iterator[Case]:
    for mma_type in MMA_TYPES:
        yield _Layer(mma_type, 0, 4, 2, 128, 128, num_shared=1).case("edge", "full")
        yield _Layer(mma_type, 1, 4, 2, 128, 128, has_stats=False).case("edge", "full")
        yield _Layer(mma_type, 9, 4, 2, 128, 128, masked=1.0).case("edge", "full")
    # One expert, named in every slot; and more shared than routed work.
    yield _Layer("fp8xfp4", 5, 1, 4, 128, 128, clamp=0.0).case("edge", "full")
    yield _Layer("fp8xfp8", 11, 2, 1, 128, 128, num_shared=3, masked=0.5).case("edge", "full")


def _full() -> Iterator[Case]:
    for mma_type in MMA_TYPES:
        yield _Layer(mma_type, 200, 16, 6, 512, 384, num_shared=1, clamp=10.0, masked=0.1).case("full")
        yield _Layer(mma_type, 300, 2, 2, 384, 256).case("full")


def _bench() -> Iterator[Case]:
    for mma_type in MMA_TYPES:
        for num_tokens in (1, 16, 256):
            yield _Layer(mma_type, num_tokens, 16, 4, 1024, 512).case("bench")


@functools.cache
def mega_moe_cases() -> tuple[Case, ...]:
    """Return all cases of Mega MoE."""
    return (*_smoke(), *_edge(), *_full(), *_bench())


@functools.cache
def transform_cases() -> tuple[Case, ...]:
    """Return cases of the weight transformation: its result is opaque, so a Mega MoE call reads it."""
    smoke = [_Layer(mma_type, 8, 2, 1, 256, 128).case("smoke", "full") for mma_type in MMA_TYPES]
    edge = [_Layer(mma_type, 3, 1, 1, 128, 128, num_shared=2).case("edge", "full") for mma_type in MMA_TYPES]
    return (*smoke, *edge)
