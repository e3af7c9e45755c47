"""Mega MoE on the CPU: which rows go to which rank, and how results come back. Arithmetic is in mega_moe.py.

Only bytes and int64 travel, with the collectives gloo has: all_gather of counts, all_to_all of uneven blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from unikernels.operations import MegaMoeProblem


@dataclass(frozen=True, slots=True)
class _Route:
    """What goes back where: places of this rank's pairs in the combine slots, pairs sent and received per rank."""

    places: Tensor
    num_sent: list[int]
    num_received: list[int]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The (token, slot) pairs this rank computes, ordered by (source rank, token, slot).

    Attributes:
        x, x_sf: rows of activations and scales that `rows` points into.
        rows: int64 [n], row of each pair. experts: int64 [n], local expert. weights: float32 [n].
        results: bf16 [.., H], where pair i is written to row places[i].
        route: None when all pairs are this rank's own and `results` are the combine slots already.
    """

    x: Tensor
    x_sf: Tensor
    rows: Tensor
    experts: Tensor
    weights: Tensor
    results: Tensor
    places: Tensor
    route: _Route | None


def dispatch(problem: MegaMoeProblem, num_tokens: list[int]) -> Pairs:
    """Send every token to the ranks that own its experts, once per rank, and return what this rank received.

    Args:
        num_tokens: tokens of every rank.
    """
    buffer, own = problem.buffer, problem.num_tokens
    routing = buffer.topk_idx[:own]
    tokens, slots = (routing >= 0).nonzero(as_tuple=True)
    experts, weights = routing[tokens, slots], buffer.topk_weights[:own][tokens, slots]
    slot_rows = buffer.combine_slots.view(-1, buffer.hidden)
    places = slots * buffer.num_max_tokens_per_rank + tokens
    if buffer.num_ranks == 1:
        x, x_sf = buffer.x[:own], buffer.x_sf[:own]
        return Pairs(x, x_sf, tokens, experts, weights, slot_rows, places, None)

    # Pairs sorted by owner; the sort is stable, so tokens and slots stay in order.
    owners = experts // buffer.sizes.num_local_experts
    order = owners.argsort(stable=True)
    tokens, experts, weights, owners, places = (one[order] for one in (tokens, experts, weights, owners, places))
    # One row per (owner, token): a token travels once to a rank that owns several of its experts.
    row_keys, pair_rows = (owners * max(own, 1) + tokens).unique_consecutive(return_inverse=True)
    row_owners, row_tokens = row_keys // max(own, 1), row_keys % max(own, 1)
    counts = torch.stack([_per_rank(row_owners, buffer.num_ranks), _per_rank(owners, buffer.num_ranks)])
    all_counts = [torch.empty_like(counts) for _ in num_tokens]
    dist.all_gather(all_counts, counts, group=buffer.channel)
    received = torch.stack([one[:, buffer.rank] for one in all_counts])
    (rows_out, pairs_out), (rows_in, pairs_in) = counts.tolist(), received.T.tolist()

    first_row = torch.cumsum(counts[0], 0) - counts[0]
    records = torch.stack([pair_rows - first_row[owners], experts % buffer.sizes.num_local_experts], 1)
    weight_bits = weights.view(torch.int32).to(torch.int64).unsqueeze(1)
    records = _all_to_all(torch.cat([records, weight_bits], 1), pairs_out, pairs_in, buffer.channel)
    x = _exchange_rows(buffer.x, row_tokens, rows_out, rows_in, buffer.channel)
    x_sf = buffer.x_sf
    if buffer.sizes.is_quantised:
        x_sf = _exchange_rows(buffer.x_sf, row_tokens, rows_out, rows_in, buffer.channel)
    block_starts = torch.cumsum(received[:, 0], 0) - received[:, 0]
    rows = records[:, 0] + block_starts.repeat_interleave(received[:, 1])
    results = torch.empty(len(records), buffer.hidden, dtype=torch.bfloat16)
    return Pairs(
        x, x_sf, rows, records[:, 1].contiguous(), records[:, 2].to(torch.int32).view(torch.float32), results,
        torch.arange(len(records)), _Route(places, pairs_out, pairs_in),
    )  # fmt: skip


def collect(problem: MegaMoeProblem, pairs: Pairs) -> None:
    """Bring results back to the combine slots of the ranks whose tokens they belong to."""
    if pairs.route is None:
        return
    buffer, route = problem.buffer, pairs.route
    returned = _all_to_all(pairs.results.view(torch.uint8), route.num_received, route.num_sent, buffer.channel)
    slot_rows = buffer.combine_slots.view(-1, buffer.hidden)
    slot_rows[route.places] = returned.view(torch.bfloat16)


def _per_rank(owners: Tensor, num_ranks: int) -> Tensor:
    return torch.bincount(owners, minlength=num_ranks)


def _exchange_rows(data: Tensor, rows: Tensor, out: list[int], into: list[int], group: object) -> Tensor:
    """Send the given rows of a contiguous matrix, as bytes, and return the received ones."""
    return _all_to_all(data.view(torch.uint8)[rows], out, into, group).view(data.dtype)


def _all_to_all(data: Tensor, out: list[int], into: list[int], group: object) -> Tensor:
    received = torch.empty((sum(into), data.shape[1]), dtype=data.dtype)
    dist.all_to_all_single(received, data.contiguous(), into, out, group=group)
    return received
