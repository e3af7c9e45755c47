"""Mega MoE on the CPU: rows grouped by expert, two matmuls per expert, partial results summed in slot order.

What travels between ranks is in mega_moe_exchange.py. Rows of an expert stand in the order of (source rank, token,
slot), so results do not depend on how tokens are spread over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from unikernels.mega_moe.weights import row_scales
from unikernels.operations import MegaMoeProblem, Operand
from unikernels.operations.mega_moe import begin, token_scale_rows
from unikernels.utils import per_token_cast_to_fp8

from .matmul import matmul_nt
from .mega_moe_exchange import Pairs, collect, dispatch

#: Rows of gate and up held at once; bounds the memory of large calls, and is far above what one expert usually gets.
_ROWS_PER_PASS = 4096


def mega_moe(problem: MegaMoeProblem) -> None:
    """Write y and add to the statistics; every rank of the group takes part, also without tokens."""
    num_tokens = begin(problem)
    _shared_experts(problem)
    pairs = dispatch(problem, num_tokens)
    counts = torch.bincount(pairs.experts, minlength=problem.buffer.sizes.num_local_experts)
    if problem.stats is not None:
        problem.stats.add_(counts)
    _routed_experts(problem, pairs, counts.tolist())
    collect(problem, pairs)
    _combine(problem)


def _routed_experts(problem: MegaMoeProblem, pairs: Pairs, counts: list[int]) -> None:
    """Fill pairs.results for every (token, slot) pair this rank received."""
    by_expert = pairs.experts.argsort(stable=True)
    width = problem.l1.num_rows
    for segments in _passes(counts):
        first, last = segments[0][1], segments[-1][2]
        gate_up = torch.empty(last - first, width, dtype=torch.bfloat16)
        for expert, start, stop in segments:
            rows = pairs.rows[by_expert[start:stop]]
            words = pairs.x_sf[rows] if problem.buffer.sizes.is_quantised else pairs.x_sf
            matmul_nt(
                _activations(pairs.x[rows], words), problem.l1.expert(expert), gate_up[start - first : stop - first]
            )
        order = by_expert[first:last]
        acts = _swiglu(gate_up, problem.activation_clamp).mul_(pairs.weights[order].unsqueeze(1))
        hidden = _quantised(acts, problem.buffer.sizes.is_quantised)
        for expert, start, stop in segments:
            out = torch.empty(stop - start, problem.buffer.hidden, dtype=torch.bfloat16)
            matmul_nt(hidden.rows(start - first, stop - first), problem.l2.expert(expert), out)
            pairs.results[pairs.places[by_expert[start:stop]]] = out


def _passes(counts: list[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield groups of (expert, start, stop) over the rows sorted by expert; whole experts, unless one alone is too long."""
    segments: list[tuple[int, int, int]] = []
    position = 0
    for expert, count in enumerate(counts):
        if segments and position + count - segments[0][1] > _ROWS_PER_PASS:
            yield segments
            segments = []
        end = position + count
        while end - position > _ROWS_PER_PASS:
            yield [(expert, position, position + _ROWS_PER_PASS)]
            position += _ROWS_PER_PASS
        if end > position:
            segments.append((expert, position, end))
            position = end
    if segments:
        yield segments


def _activations(data: Tensor, words: Tensor) -> Operand:
    """Describe rows of activations with their packed scales (ignored for BF16)."""
    num_rows, num_columns = data.shape
    if data.dtype is torch.bfloat16:
        return Operand(data, "bf16", num_rows, num_columns, True)
    return Operand(data, "fp8", num_rows, num_columns, True, row_scales(words, num_rows, num_columns))


def _swiglu(gate_up: Tensor, clamp: float | None) -> Tensor:
    """Return g * sigmoid(g) * u in float32 from bf16 [n, 2 * width]."""
    gate, up = gate_up.float().chunk(2, dim=1)
    if clamp is not None:
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    return torch.sigmoid(gate).mul_(gate).mul_(up)


def _quantised(acts: Tensor, is_quantised: bool) -> Operand:
    """Round float32 activations to what the second matmul reads: E4M3 with scales per 32 columns, or bf16."""
    if not is_quantised:
        return _activations(acts.bfloat16(), acts)
    return _activations(*per_token_cast_to_fp8(acts, True, 32, use_packed_ue8m0=True))


def _shared_experts(problem: MegaMoeProblem) -> None:
    """Fill the last combine slot, and the buffer's shared_l2 views on the way."""
    buffer, num_tokens = problem.buffer, problem.num_tokens
    if problem.shared_l1 is None or problem.shared_l2 is None or num_tokens == 0:
        return
    is_quantised = buffer.sizes.is_quantised
    scale_rows = token_scale_rows(problem)
    words = buffer.shared_l1_acts_sf[scale_rows] if is_quantised else buffer.shared_l1_acts_sf
    gate_up = torch.empty(num_tokens, problem.shared_l1.num_rows, dtype=torch.bfloat16)
    matmul_nt(_activations(buffer.shared_l1_acts[:num_tokens], words), problem.shared_l1.expert(None), gate_up)
    hidden = _quantised(_swiglu(gate_up, problem.activation_clamp), is_quantised)
    buffer.shared_l2_acts[:num_tokens] = hidden.data
    if hidden.scales is not None:
        buffer.shared_l2_acts_sf[scale_rows] = hidden.scales.data
    matmul_nt(hidden, problem.shared_l2.expert(None), buffer.combine_slots[buffer.num_topk, :num_tokens])


def _combine(problem: MegaMoeProblem) -> None:
    """y = bf16(shared + slot 0 + slot 1 + ..), leaving out slots without an expert."""
    buffer, num_tokens = problem.buffer, problem.num_tokens
    slots = buffer.combine_slots[:, :num_tokens]
    total = torch.zeros(num_tokens, buffer.hidden)
    if problem.shared_l1 is not None:
        total += slots[buffer.num_topk]
    is_used = buffer.topk_idx[:num_tokens] >= 0
    for slot in range(buffer.num_topk):
        # Memory of unused slots may hold NaN from an earlier call, which a factor of zero would let through.
        total += slots[slot].masked_fill(~is_used[:, slot, None], 0.0)
    problem.y.copy_(total)
