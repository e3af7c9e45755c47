"""MQA logits of selected key blocks on the CPU: each block of a group of tokens is decoded once, each token scored alone.

The arithmetic is that of mqa_scores.py, so a logit has the same bits as in mqa_logits.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from unikernels.operations import (
    Operand,
    PagedSparseMqaLogitsProblem,
    SparseMqaLogitsProblem,
    key_positions,
    num_used_blocks,
)

from .matmul import decode
from .mqa_scores import Scorer, aligned_keys, keys_per_tile

#: Selected keys of the tokens that share decoded blocks: 32 MiB in float32 with 128 elements. The most blocks a token can
#: have fit.
GROUP_KEYS = 65536


def sparse_mqa_logits(problem: SparseMqaLogitsProblem) -> None:
    """Blocks are named by the position of their first key."""
    block_kv, kv = problem.block_kv, problem.kv
    shifts = problem.starts.long() % block_kv if problem.is_shifted else torch.zeros_like(problem.starts)
    used = num_used_blocks(problem.starts, problem.ends, problem.blocks.shape[1], block_kv).tolist()

    def ids(token: int) -> Tensor:
        return problem.blocks[token, : used[token]].long() * block_kv + shifts[token]

    def keys(first_keys: Tensor) -> Operand:
        # A last block may reach beyond the keys; what it finds there is outside every window.
        return _rows(kv, key_positions(first_keys, block_kv).clamp(0, kv.mn - 1))

    _score(problem, used, ids, keys)


def paged_sparse_mqa_logits(problem: PagedSparseMqaLogitsProblem) -> None:
    """Blocks are named by page * blocks per page + block within the page."""
    cache, per_page = problem.cache, problem.blocks_per_page
    data, scales = cache.planes(problem.block_kv)
    used = num_used_blocks(0, problem.lengths, problem.blocks.shape[1], problem.block_kv).tolist()

    def ids(token: int) -> Tensor:
        pages = problem.pages[token, : used[token]].long().clamp(0, cache.num_pages - 1)
        return pages * per_page + problem.blocks[token, : used[token]].long() % per_page

    def keys(block_ids: Tensor) -> Operand:
        pages, slots = block_ids // per_page, block_ids % per_page
        return cache.operand(_gather(data, pages, slots), _gather(scales, pages, slots))

    _score(problem, used, ids, keys)


def _score(
    problem: SparseMqaLogitsProblem | PagedSparseMqaLogitsProblem,
    used: list[int],
    ids: Callable[[int], Tensor],
    keys: Callable[[Tensor], Operand],
) -> None:
    heads, block_kv = problem.num_heads, problem.block_kv
    weights = problem.weights.float()
    scorer = Scorer(heads)
    step = keys_per_tile(heads) // block_kv
    for tokens in _groups(used, block_kv):
        unique, places = torch.cat([ids(token) for token in tokens]).unique(return_inverse=True)
        blocks = decode(keys(unique)).view(len(unique), -1)
        q = decode(problem.q.rows(tokens[0] * heads, (tokens[-1] + 1) * heads)).unflatten(0, (-1, heads))
        for token, place in zip(tokens, places.split([used[token] for token in tokens]), strict=True):
            for begin in range(0, len(place), step):
                part = place[begin : begin + step]
                num_keys = len(part) * block_kv
                padded = torch.empty(aligned_keys(num_keys), problem.q.k)
                torch.index_select(blocks, 0, part, out=padded[:num_keys].view(len(part), -1))
                padded[num_keys:] = 0
                tile = scorer.logits(q[token - tokens[0]], weights[token : token + 1], padded)
                problem.logits[token, begin * block_kv : begin * block_kv + num_keys] = tile[0, :num_keys]


def _gather(plane: Tensor, pages: Tensor, slots: Tensor) -> Tensor:
    """Return plane[pages, slots] of a uint8 plane [pages, blocks, bytes], copied block by block instead of byte by byte."""
    (num_pages, num_blocks, block_bytes), (pitch, step, _) = plane.shape, plane.stride()
    unit = math.gcd(pitch, step)
    last = (num_pages - 1) * pitch + (num_blocks - 1) * step
    rows = plane.as_strided((last // unit + 1, block_bytes), (unit, 1))
    return rows.index_select(0, (pages * pitch + slots * step) // unit)


def _groups(used: list[int], block_kv: int) -> Iterator[list[int]]:
    """Yield neighbouring tokens that have blocks, together at most `GROUP_KEYS` selected keys."""
    group: list[int] = []
    size = 0
    for token, count in enumerate(used):
        if not count:
            continue
        if group and (size + count) * block_kv > GROUP_KEYS:
            yield group
            group, size = [], 0
        group.append(token)
        size += count
    if group:
        yield group


def _rows(operand: Operand, rows: Tensor) -> Operand:
    """Return the given rows of a K-major operand with one row of scales per row."""
    assert operand.scales is not None
    scales = replace(operand.scales, data=operand.scales.data.index_select(0, rows), mn=len(rows))
    data = operand.data.view(torch.uint8).index_select(0, rows).view(operand.data.dtype)
    return replace(operand, data=data, mn=len(rows), scales=scales)
