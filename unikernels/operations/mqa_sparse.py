"""MQA logits of selected key blocks only: problems and definitions.

A query token names blocks of `block_kv` neighbouring keys; the logit of a key is that of mqa_logits.py. How the selection
travels from the metadata call to the compute call is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Operation, cases_in
from .gemm import dequantise
from .mqa_logits import PagedKeys, weighted_logits
from .operands import Operand


@dataclass(frozen=True, slots=True)
class SparseMqaLogitsProblem:
    """Logits of every query against its blocks of contiguous keys.

    Attributes:
        q: operand [num_queries * num_heads, head_dim] with MX scales.
        kv: operand [num_keys, head_dim] with MX scales.
        weights: [num_queries, num_heads] bfloat16, unit stride along heads.
        starts, ends: [num_queries] int32 window of each query.
        blocks: [num_queries, num_blocks] int32, contiguous. Row i uses its first min(num_blocks, ceil((end - start) /
            block_kv)) entries, strictly increasing; the others may hold anything.
        block_kv: keys of a block. Block x holds keys x * block_kv + shift + (0 .. block_kv - 1).
        is_shifted: whether shift is start % block_kv of the row; else it is 0.
        logits: [num_queries, num_blocks * block_kv] bfloat16, rows at a pitch. Column s * block_kv + o is key o of block
            blocks[i, s]; keys outside the window and unused blocks are unspecified.
    """

    q: Operand
    kv: Operand
    weights: Tensor
    starts: Tensor
    ends: Tensor
    blocks: Tensor
    block_kv: int
    is_shifted: bool
    logits: Tensor

    @property
    def num_heads(self) -> int:
        return self.weights.shape[1]


@dataclass(frozen=True, slots=True)
class PagedSparseMqaLogitsProblem:
    """Logits of every token against its blocks of paged keys.

    Attributes:
        q, weights, block_kv, logits: as in `SparseMqaLogitsProblem`.
        cache: the paged keys; block_kv divides its page size.
        lengths: [num_queries] int32: token i sees keys 0 .. length - 1 of its sequence.
        blocks: [num_queries, num_blocks] int32 block numbers within the sequence; row i uses its first
            min(num_blocks, ceil(length / block_kv)) entries.
        pages: [num_queries, num_blocks] int32 physical page of each used block.
        requests: [num_queries] int32 request of each token; tokens of one request stand together.
    """

    q: Operand
    cache: PagedKeys
    weights: Tensor
    lengths: Tensor
    blocks: Tensor
    pages: Tensor
    requests: Tensor
    block_kv: int
    logits: Tensor

    @property
    def num_heads(self) -> int:
        return self.weights.shape[1]

    @property
    def blocks_per_page(self) -> int:
        return self.cache.page_kv // self.block_kv


def num_used_blocks(starts: Tensor | int, ends: Tensor, num_blocks: int, block_kv: int) -> Tensor:
    """Return how many entries of its row each query uses."""
    return (
        ((ends.long() - starts).clamp(min=0) + block_kv - 1).div(block_kv, rounding_mode="floor").clamp(max=num_blocks)
    )


def key_positions(first_keys: Tensor, block_kv: int) -> Tensor:
    """Return the key behind every column, int64 [n * block_kv], of n blocks given by their first keys."""
    return (first_keys.long()[:, None] + torch.arange(block_kv, device=first_keys.device)).flatten()


def sparse_mqa_logits_reference(problem: SparseMqaLogitsProblem) -> None:
    """One query at a time in float64, one rounding."""
    q = dequantise(problem.q).unflatten(0, (-1, problem.num_heads))
    keys = dequantise(problem.kv)
    block_kv = problem.block_kv
    used = num_used_blocks(problem.starts, problem.ends, problem.blocks.shape[1], block_kv).tolist()
    windows = zip(problem.starts.tolist(), problem.ends.tolist(), strict=True)
    for i, (start, end) in enumerate(windows):
        shift = start % block_kv if problem.is_shifted else 0
        row = key_positions(problem.blocks[i, : used[i]].long() * block_kv + shift, block_kv)
        columns = ((row >= max(start, 0)) & (row < min(end, keys.shape[0]))).nonzero()[:, 0]
        logits = weighted_logits(q[i], keys[row[columns]], problem.weights[i])
        problem.logits[i, columns] = logits.to(problem.logits.dtype)


def paged_sparse_mqa_logits_reference(problem: PagedSparseMqaLogitsProblem) -> None:
    """One token at a time in float64, one rounding; only pages of used blocks are read."""
    q = dequantise(problem.q).unflatten(0, (-1, problem.num_heads))
    block_kv = problem.block_kv
    used = num_used_blocks(0, problem.lengths, problem.blocks.shape[1], block_kv)
    data, scales = problem.cache.planes(block_kv)
    for i, num_used in enumerate(used.tolist()):
        if num_used == 0:
            continue
        pages = problem.pages[i, :num_used].long().clamp(0, problem.cache.num_pages - 1)
        slots = problem.blocks[i, :num_used].long() % problem.blocks_per_page
        keys = dequantise(problem.cache.operand(data[pages, slots], scales[pages, slots]))
        row = key_positions(problem.blocks[i, :num_used].long() * block_kv, block_kv)
        columns = (row < problem.lengths[i]).nonzero()[:, 0]
        logits = weighted_logits(q[i], keys[columns], problem.weights[i])
        problem.logits[i, columns] = logits.to(problem.logits.dtype)


SPARSE_MQA_LOGITS = Operation(
    name="sparse_mqa_logits",
    problem=SparseMqaLogitsProblem,
    reference=sparse_mqa_logits_reference,
    cases=cases_in("mqa_sparse_cases", "sparse_mqa_logits_cases"),
    summary="indexer logits of selected blocks of contiguous keys",
)

PAGED_SPARSE_MQA_LOGITS = Operation(
    name="paged_sparse_mqa_logits",
    problem=PagedSparseMqaLogitsProblem,
    reference=paged_sparse_mqa_logits_reference,
    cases=cases_in("mqa_sparse_cases", "paged_sparse_mqa_logits_cases"),
    summary="indexer logits of selected blocks of paged keys",
)
