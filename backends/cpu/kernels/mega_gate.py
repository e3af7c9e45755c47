"""Expert routing on the CPU: float32 scores in tiles of tokens, ranking by one integer key per expert.

Scores of all tokens are looked at before anything is written, but only the chosen ones are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unikernels.operations.mega_gate import (
    MegaGateProblem,
    refuse_bad_tables,
    refuse_non_finite_scores,
    score_of,
    write_routing,
    write_unranked,
)

from .row_invariant import padded_tile, row_tiles


def mega_gate(problem: MegaGateProblem) -> None:
    """Write indices and weights of every token; equal tokens give equal bits."""
    refuse_bad_tables(problem)
    num_tokens, k = problem.num_tokens, problem.num_topk
    logical = torch.empty((num_tokens, k), dtype=torch.int64)
    chosen = torch.empty((num_tokens, k))
    weight = problem.weight.float()
    for rows in row_tiles(num_tokens):
        # The whole tile, padding included: transcendental functions then treat every row alike.
        scores = score_of(torch.mm(padded_tile(problem.x[rows]), weight.T), problem.scoring_func)
        scores = scores[: rows.stop - rows.start]
        refuse_non_finite_scores(scores, rows.start)
        logical[rows] = _chosen(problem, scores, rows)
        torch.gather(scores, 1, logical[rows], out=chosen[rows])
    is_routed = problem.applies(problem.mask, True) & ~problem.applies(problem.force_random, False)
    tokens = is_routed.nonzero().flatten()
    write_routing(problem, logical[tokens], chosen[tokens], tokens)
    write_unranked(problem)


def _chosen(problem: MegaGateProblem, scores: Tensor, rows: slice) -> Tensor:
    """Return the logical experts of each token of a tile; those of random and inactive tokens are not used."""
    rank = scores if problem.bias is None else scores + problem.bias
    if problem.image_bias is not None and problem.image_token_mask is not None:
        rank = torch.where(problem.image_token_mask[rows].unsqueeze(1), scores + problem.image_bias, rank)
    experts = _largest(rank, problem.num_topk)
    if problem.fix_routing_mask is None or problem.unmapped_topk_idx is None:
        return experts
    fixed = problem.unmapped_topk_idx[rows].clamp(0, problem.num_experts - 1)
    return torch.where(problem.fix_routing_mask[rows].unsqueeze(1), fixed, experts)


def _largest(rank: Tensor, k: int) -> Tensor:
    """Return the columns of the k largest of each row, best first, ties to the smaller column.

    `torch.topk` leaves ties open. Keys are distinct: the rank's bits in the order of the values, then the column
    backwards.
    """
    num_columns = rank.shape[1]
    bits = (rank + 0.0).view(torch.int32)  # + 0.0 makes the two zeros equal
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    backwards = torch.arange(num_columns - 1, -1, -1)
    keys = (ordered.long() << 32) | backwards
    return num_columns - 1 - (keys.topk(k, dim=1).values & 0xFFFFFFFF)
