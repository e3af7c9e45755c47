"""Routing of tokens to experts: the problem, its definition, and the parts every host backend must agree on.

Cases are in mega_gate_cases.py. What an expert computes is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from .base import Operation, cases_in

ScoringFunction = Literal["sqrtsoftplus", "sigmoid", "identity"]

#: Step between the replicas of neighbouring tokens (contract 3.6, rule 6).
REPLICA_STEP = 23333
#: softplus(v) is v beyond this (contract 3.6).
SOFTPLUS_LINEAR_FROM = 20.0
#: Keeps the normalisation finite when all chosen scores are zero.
WEIGHT_EPS = 1e-20
INACTIVE = -1

_UINT32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class MegaGateProblem:
    """The experts of each token and their weights.

    T tokens, H hidden, E routed experts, S shared experts routed like others, Kp = num_topk + S; contiguous but for the
    rows of unmapped_topk_idx. Rules, the first that applies to a token:

    1. `mask` False: indices and unmapped indices -1, weights 0.
    2. `force_random`: Kp distinct physical experts drawn uniformly, weights uniform in (0, 1], unmapped -1. Which ones
       is up to the backend, but the same in every call with the same ep_rank and token index.
    3. `fix_routing_mask`: the logical experts are those in unmapped_topk_idx.
    4. else: the num_topk largest of score + bias, best first, ties to the smaller index; bias is image_bias for tokens
       in image_token_mask, bias for others.

    After 3 and 4: weight = score / (sum of chosen scores + 1e-20) * routed_scaling_factor; the shared experts E..E+S-1
    follow with weight 1; logical indices go to unmapped_topk_idx; with a map, logical l becomes
    to_physical_map[l, (ep_rank + 23333 * t mod 2^32) mod logical_count[l]].

    A score that is NaN or infinite is refused before anything is written, also for inactive tokens.

    Attributes:
        x: [T, H] bf16. weight: [E, H] bf16.
        num_topk, num_shared, routed_scaling_factor, ep_rank, scoring_func: as above; num_shared is S.
        mask, image_token_mask, fix_routing_mask, force_random: bool [T] or None. bias, image_bias: fp32 [E] or None.
        to_physical_map: int32 [E+S, dup] or None. logical_count: int32 [E+S], 1..dup, or None.
        unmapped_topk_idx: int64 [T, num_topk], unit last stride, read (rule 3) and written; or None.
        topk_idx, topk_weights: outputs [T, Kp], int64 and fp32.
    """

    x: Tensor
    weight: Tensor
    num_topk: int
    num_shared: int
    routed_scaling_factor: float
    ep_rank: int
    scoring_func: ScoringFunction
    topk_idx: Tensor
    topk_weights: Tensor
    mask: Tensor | None = None
    bias: Tensor | None = None
    image_bias: Tensor | None = None
    image_token_mask: Tensor | None = None
    fix_routing_mask: Tensor | None = None
    to_physical_map: Tensor | None = None
    logical_count: Tensor | None = None
    unmapped_topk_idx: Tensor | None = None
    force_random: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return self.x.shape[0]

    @property
    def num_experts(self) -> int:
        return self.weight.shape[0]

    def num_physical(self) -> int:
        """Return how many physical experts there are (reads logical_count)."""
        if self.logical_count is None:
            return self.num_experts + self.num_shared
        return int(self.logical_count.sum())

    def applies(self, flags: Tensor | None, default: bool) -> Tensor:
        """Return per-token flags [T], `default` where the argument is absent."""
        if flags is None:
            return torch.full((self.num_tokens,), default, device=self.x.device)
        return flags


def refuse_non_finite_scores(scores: Tensor, first_token: int = 0) -> None:
    """Raise InvalidArgumentError naming the first score [tokens, E] that is NaN or infinite.

    Args:
        first_token: index of the first row of `scores` in the call.
    """
    if bool(scores.isfinite().all()):
        return
    token, expert = (~scores.isfinite()).nonzero()[0].tolist()
    raise InvalidArgumentError(
        f"bf16_mega_gate: the score of token {token + first_token} for expert {expert} is "
        f"{scores[token, expert].item()}, expected finite scores, also for tokens that `mask` leaves out: x or weight "
        f"holds NaN, infinite or huge values. Clear the rows of x that hold no token."
    )


def refuse_bad_tables(problem: MegaGateProblem) -> None:
    """Raise InvalidArgumentError for replica counts outside 1..dup and for fixed experts outside 0..E-1."""
    if problem.logical_count is not None and problem.to_physical_map is not None:
        count, dup = problem.logical_count, problem.to_physical_map.shape[1]
        bad = ((count < 1) | (count > dup)).nonzero()
        if bad.numel():
            expert = int(bad[0])
            raise InvalidArgumentError(
                f"bf16_mega_gate: logical_count[{expert}] is {int(count[expert])}, expected 1 to {dup}: every logical "
                f"expert has at least one physical one and at most the columns of to_physical_map."
            )
    if problem.fix_routing_mask is None or problem.unmapped_topk_idx is None:
        return
    is_read = (
        problem.fix_routing_mask & problem.applies(problem.mask, True) & ~problem.applies(problem.force_random, False)
    )
    experts = problem.unmapped_topk_idx
    bad = (is_read.unsqueeze(1) & ((experts < 0) | (experts >= problem.num_experts))).nonzero()
    if bad.numel():
        token, slot = bad[0].tolist()
        raise InvalidArgumentError(
            f"bf16_mega_gate: unmapped_topk_idx[{token}, {slot}] is {int(experts[token, slot])}, expected an expert in "
            f"0..{problem.num_experts - 1}: fix_routing_mask takes this token's experts from there."
        )


def _mix(x: Tensor) -> Tensor:
    """Scramble 32-bit values held in int64; both factors are below 2^31, so no product overflows."""
    x = ((x ^ (x >> 16)) * 0x045D9F3B) & _UINT32
    x = ((x ^ (x >> 15)) * 0x7FEB352D) & _UINT32
    return x ^ (x >> 16)


def random_routing(tokens: Tensor, num_slots: int, num_physical: int, ep_rank: int) -> tuple[Tensor, Tensor]:
    """Draw distinct experts and weights for each token from a hash of (ep_rank, token, slot).

    Args:
        tokens: int64 [r], token indices in the call.

    Returns:
        experts int64 [r, num_slots], distinct within a row, uniform over 0..num_physical-1; weights float32, uniform in
        (0, 1].
    """
    seed = _mix(torch.tensor(ep_rank & _UINT32, device=tokens.device) ^ 0x2545F491)
    stream = _mix((_mix(tokens & _UINT32) + seed) & _UINT32).unsqueeze(1)
    slots = torch.arange(2 * num_slots, device=tokens.device)
    draws = _mix((_mix(slots ^ stream) + seed) & _UINT32)
    weights = ((draws[:, num_slots:] >> 8) + 1).float() * 2.0**-24
    # Each draw counts among the experts not chosen yet: skip the chosen ones in ascending order.
    experts = torch.empty_like(draws[:, :num_slots])
    for slot in range(num_slots):
        candidate = draws[:, slot] % (num_physical - slot)
        for chosen in experts[:, :slot].sort(dim=1).values.unbind(1):
            candidate = candidate + (candidate >= chosen)
        experts[:, slot] = candidate
    return experts, weights


def write_routing(problem: MegaGateProblem, logical: Tensor, chosen_scores: Tensor, tokens: Tensor) -> None:
    """Write the outputs of ranked and fixed tokens (rules 5 and 6).

    Args:
        logical: int64 [r, num_topk]. chosen_scores: [r, num_topk], their scores in float32 or float64.
        tokens: int64 [r], token indices in the call.
    """
    k = problem.num_topk
    # Column by column: the order of a library's row sum may depend on the number of rows.
    total = torch.full((len(tokens), 1), WEIGHT_EPS, dtype=chosen_scores.dtype, device=chosen_scores.device)
    for column in chosen_scores.unbind(1):
        total = total + column.unsqueeze(1)
    weights = (chosen_scores / total * problem.routed_scaling_factor).float()
    if problem.unmapped_topk_idx is not None:
        problem.unmapped_topk_idx[tokens] = logical
    if problem.num_shared:
        shared = torch.arange(problem.num_shared, device=logical.device) + problem.num_experts
        logical = torch.cat([logical, shared.expand(len(tokens), -1)], dim=1)
        problem.topk_weights[tokens, k:] = 1.0
    problem.topk_weights[tokens, :k] = weights
    if problem.to_physical_map is not None and problem.logical_count is not None:
        draw = ((problem.ep_rank & _UINT32) + REPLICA_STEP * tokens) & _UINT32
        replica = draw.unsqueeze(1) % problem.logical_count.long()[logical]
        logical = problem.to_physical_map.long()[logical, replica]
    problem.topk_idx[tokens] = logical


def write_unranked(problem: MegaGateProblem) -> None:
    """Write the outputs of inactive and of random tokens (rules 1 and 2)."""
    active = problem.applies(problem.mask, True)
    inactive_tokens = (~active).nonzero().flatten()
    random_tokens = (active & problem.applies(problem.force_random, False)).nonzero().flatten()
    problem.topk_idx[inactive_tokens] = INACTIVE
    problem.topk_weights[inactive_tokens] = 0.0
    if len(random_tokens):
        num_slots = problem.topk_idx.shape[1]
        experts, weights = random_routing(random_tokens, num_slots, problem.num_physical(), problem.ep_rank)
        problem.topk_idx[random_tokens] = experts
        problem.topk_weights[random_tokens] = weights
    if problem.unmapped_topk_idx is not None:
        problem.unmapped_topk_idx[inactive_tokens] = INACTIVE
        problem.unmapped_topk_idx[random_tokens] = INACTIVE


def score_of(logits: Tensor, scoring_func: ScoringFunction) -> Tensor:
    """Return f(logits) elementwise."""
    if scoring_func == "sigmoid":
        return logits.sigmoid()
    if scoring_func == "identity":
        return logits
    return torch.nn.functional.softplus(logits, threshold=SOFTPLUS_LINEAR_FROM).sqrt()


def mega_gate_reference(problem: MegaGateProblem) -> None:
    """float64 scores, a stable sort for the ranking."""
    scores = score_of(problem.x.double() @ problem.weight.double().T, problem.scoring_func)
    refuse_non_finite_scores(scores)
    refuse_bad_tables(problem)
    rank = scores
    if problem.bias is not None:
        rank = scores + problem.bias.double()
    if problem.image_bias is not None:
        is_image = problem.applies(problem.image_token_mask, False)
        rank = torch.where(is_image.unsqueeze(1), scores + problem.image_bias.double(), rank)
    logical = rank.sort(dim=1, descending=True, stable=True).indices[:, : problem.num_topk]
    if problem.fix_routing_mask is not None and problem.unmapped_topk_idx is not None:
        logical = torch.where(problem.fix_routing_mask.unsqueeze(1), problem.unmapped_topk_idx, logical)
    is_routed = problem.applies(problem.mask, True) & ~problem.applies(problem.force_random, False)
    tokens = is_routed.nonzero().flatten()
    logical = logical[tokens]
    write_routing(problem, logical, scores[tokens].gather(1, logical), tokens)
    write_unranked(problem)


MEGA_GATE = Operation(
    name="mega_gate",
    problem=MegaGateProblem,
    reference=mega_gate_reference,
    cases=cases_in("mega_gate_cases"),
    summary="scores of experts, biased top-k, weights, shared experts and physical replicas",
    functions=("bf16_mega_gate",),
)
