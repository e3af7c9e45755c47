"""Mega MoE: dispatch, two linear layers with SwiGLU between, combine, over all ranks of a group.

Problem, definition and cases of the operation and of its weight transformation. Memory and agreement of ranks are in
unikernels/mega_moe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidArgumentError
from ..mega_moe.sizes import block_m
from ..mega_moe.weights import MegaMoeWeights, TransformMegaMoeWeightsProblem, row_scales, transform
from .base import Operation, cases_in
from .gemm import dequantise
from .mega_mhc import shared_scale_rows
from .operands import Operand

if TYPE_CHECKING:
    from ..mega_moe.symmetric_buffer import SymmBuffer


@dataclass(frozen=True, slots=True)
class MegaMoeProblem:
    """One call of Mega MoE on one rank.

    Attributes:
        function: the public function, for messages.
        y: output bf16 [T, H].
        l1, l2: this rank's transformed experts, [2I, H] and [H, I] each.
        buffer: inputs (x, x_sf, topk_idx, topk_weights, shared_l1_acts_sf) and the group.
        shared_l1, shared_l2: the MLP of width Is that every token passes; both or neither.
        stats: int32 [experts per rank], increased by the number of (token, slot) pairs every local expert receives.
        activation_clamp: limit c of SwiGLU, None for none.
        allows_fast_math: a faster exponential and reciprocal may be used.
    """

    function: str
    y: Tensor
    l1: MegaMoeWeights
    l2: MegaMoeWeights
    buffer: SymmBuffer
    shared_l1: MegaMoeWeights | None = None
    shared_l2: MegaMoeWeights | None = None
    stats: Tensor | None = None
    activation_clamp: float | None = None
    allows_fast_math: bool = True

    @property
    def num_tokens(self) -> int:
        return self.y.shape[0]


def begin(problem: MegaMoeProblem) -> list[int]:
    """Check this rank's routing, meet the other ranks, and return every rank's number of tokens."""
    buffer = problem.buffer
    with buffer.refusals_announced(problem.function):
        check_routing(problem)
    return buffer.meet(problem.function, problem.num_tokens, problem.shared_l1 is not None, problem.activation_clamp)


def check_routing(problem: MegaMoeProblem) -> None:
    """Refuse expert ids outside -1..E-1 (they would address memory of other experts)."""
    routing, num_experts = problem.buffer.topk_idx[: problem.num_tokens], problem.buffer.num_experts
    is_bad = (routing < -1) | (routing >= num_experts)
    if bool(is_bad.any()):
        token, slot = is_bad.nonzero()[0].tolist()
        raise InvalidArgumentError(
            f"{problem.function}: sym_buffer.topk_idx[{token}, {slot}] is {routing[token, slot].item()}, expected -1 (no "
            f"expert) or an expert 0..{num_experts - 1}. Fill topk_idx for all {problem.num_tokens} tokens of y."
        )


def token_scale_rows(problem: MegaMoeProblem) -> Tensor:
    """Return the row of every token in the shared experts' scales."""
    sizes = problem.buffer.sizes
    tile = block_m(sizes.num_ranks, sizes.num_experts, problem.num_tokens, sizes.num_topk)
    return shared_scale_rows(problem.num_tokens, tile, problem.y.device)


def mega_moe_reference(problem: MegaMoeProblem) -> None:
    """Every rank computes its own tokens with every expert, whose weights their owner broadcasts; float64 products."""
    begin(problem)
    buffer, num_tokens = problem.buffer, problem.num_tokens
    routing, weights = buffer.topk_idx[:num_tokens], buffer.topk_weights[:num_tokens]
    x = dequantise(_rows(buffer.x[:num_tokens], buffer.x_sf[:num_tokens]))
    partial = torch.zeros(buffer.num_topk, num_tokens, buffer.hidden, device=x.device)
    num_received = torch.zeros(buffer.num_experts, dtype=torch.int64, device=x.device)
    for expert, w1, w2 in _all_experts(problem):
        tokens, slots = (routing == expert).nonzero(as_tuple=True)
        acts = _swiglu(x[tokens] @ w1.T, problem.activation_clamp) * weights[tokens, slots].unsqueeze(1)
        acts = _rounded_activations(acts, buffer.sizes.is_quantised)
        partial[slots, tokens] = (acts.double() @ w2.T).bfloat16().float()
        num_received[expert] = len(tokens)
    total = _shared_experts(problem)
    for slot in range(buffer.num_topk):
        total = total + partial[slot]
    problem.y.copy_(total)
    if buffer.num_ranks > 1:
        dist.all_reduce(num_received, group=buffer.channel)
    if problem.stats is not None:
        first = buffer.rank * buffer.sizes.num_local_experts
        problem.stats.add_(num_received[first : first + buffer.sizes.num_local_experts])


def _rows(data: Tensor, words: Tensor) -> Operand:
    """Describe activations [T, columns] with their scales (none for BF16)."""
    num_rows, num_columns = data.shape
    if data.dtype is torch.bfloat16:
        return Operand(data, "bf16", num_rows, num_columns, True)
    return Operand(data, "fp8", num_rows, num_columns, True, row_scales(words, num_rows, num_columns))


def _all_experts(problem: MegaMoeProblem) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (expert, w1 [2I, H], w2 [H, I]) in float64 for the experts of all ranks."""
    buffer = problem.buffer
    for expert in range(buffer.num_experts):
        owner, index = divmod(expert, buffer.sizes.num_local_experts)
        matrices = []
        for weights in (problem.l1, problem.l2):
            if owner == buffer.rank:
                values = dequantise(weights.expert(index)).contiguous()
            else:
                shape = (weights.num_rows, weights.num_columns)
                values = torch.empty(shape, dtype=torch.float64, device=problem.y.device)
            if buffer.num_ranks > 1:
                dist.broadcast(values, dist.get_global_rank(buffer.channel, owner), group=buffer.channel)
            matrices.append(values)
        yield expert, matrices[0], matrices[1]


def _swiglu(gate_up: Tensor, clamp: float | None) -> Tensor:
    """Return g * sigmoid(g) * u in float32 for gate_up = [g | u], both rounded to bf16 first."""
    gate, up = gate_up.bfloat16().float().chunk(2, dim=-1)
    if clamp is not None:
        gate, up = gate.clamp(max=clamp), up.clamp(min=-clamp, max=clamp)
    return gate * torch.sigmoid(gate) * up


def _rounded_activations(acts: Tensor, is_quantised: bool) -> Tensor:
    """Round to bf16, or quantise to E4M3 with one power-of-two scale per 32 columns and back."""
    if not is_quantised:
        return acts.bfloat16().float()
    blocks = acts.unflatten(-1, (-1, 32))
    # The smallest power of two that brings the block maximum to 448; the maximum is at least 1e-4 (contract 3.11).
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    mantissa, exponent = torch.frexp(amax / 448.0)
    scale = torch.ldexp(torch.ones_like(amax), exponent - (mantissa == 0.5).int())
    codes = (blocks / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    rounded: Tensor = (codes.float() * scale).flatten(-2)
    return rounded


def _shared_experts(problem: MegaMoeProblem) -> Tensor:
    """Return the shared experts' part of y, float32 [T, H]. The workspaces of the buffer stay as they are."""
    buffer, num_tokens = problem.buffer, problem.num_tokens
    if problem.shared_l1 is None or problem.shared_l2 is None:
        return torch.zeros(num_tokens, buffer.hidden, device=problem.y.device)
    rows = token_scale_rows(problem)
    words = buffer.shared_l1_acts_sf[rows] if buffer.sizes.is_quantised else buffer.shared_l1_acts_sf
    x = dequantise(_rows(buffer.shared_l1_acts[:num_tokens], words))
    acts = _swiglu(x @ dequantise(problem.shared_l1.expert(None)).T, problem.activation_clamp)
    acts = _rounded_activations(acts, buffer.sizes.is_quantised)
    return (acts.double() @ dequantise(problem.shared_l2.expert(None)).T).bfloat16().float()


MEGA_MOE = Operation(
    name="mega_moe",
    problem=MegaMoeProblem,
    reference=mega_moe_reference,
    cases=cases_in("mega_moe_cases"),
    summary="expert dispatch, linear 1, SwiGLU, linear 2 and combine over all ranks of a group",
    functions=("fp8_fp4_mega_moe", "bf16_mega_moe"),
)

TRANSFORM_MEGA_MOE_WEIGHTS = Operation(
    name="transform_mega_moe_weights",
    problem=TransformMegaMoeWeightsProblem,
    reference=transform,
    cases=cases_in("mega_moe_cases", "transform_cases"),
    summary="raw expert weights to the form the backend's Mega MoE kernel reads",
    functions=("transform_weights_for_mega_moe",),
)
