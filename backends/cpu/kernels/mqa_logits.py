"""MQA logits on the CPU over contiguous and paged keys: which tokens and keys are scored together, and where results go.

The arithmetic is in mqa_scores.py; scoring of selected blocks only is in mqa_sparse.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unikernels.operations import MqaLogitsProblem, Operand, PagedMqaLogitsProblem

from .matmul import decode
from .mqa_scores import KEY_TILE, Scorer, aligned_keys, decode_padded, keys_per_tile, tokens_per_tile

#: Tokens share a product while the keys it scores in vain are at most this share of the useful ones.
MAX_WASTE = 0.25


def mqa_logits(problem: MqaLogitsProblem) -> None:
    """Score groups of neighbouring queries against the union of their windows, tile by tile."""
    logits, heads = problem.logits, problem.num_heads
    if problem.fills_outside:
        logits.fill_(-torch.inf)
    windows = _clipped_windows(problem)
    offsets = problem.starts.tolist() if problem.is_compressed else [0] * len(windows)
    groups = list(_query_groups(windows, tokens_per_tile(heads)))
    if not groups:
        return
    keys = _keys(problem.kv, windows, is_read_once=len(groups) == 1)
    weights = problem.weights.float()
    scorer = Scorer(heads)
    for first, last in groups:
        q = decode(problem.q.rows(first * heads, last * heads))
        low, high = _union(windows[first:last])
        step = keys_per_tile(q.shape[0])
        for begin in range(low, high, step):
            tile = scorer.logits(q, weights[first:last], keys(begin, min(begin + step, high)))
            for i in range(first, last):
                start, end = max(windows[i][0], begin), min(windows[i][1], begin + step)
                if start < end:
                    logits[i, start - offsets[i] : end - offsets[i]] = tile[i - first, start - begin : end - begin]


def _union(windows: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the smallest range that holds all windows that are not empty."""
    used = [window for window in windows if window[0] < window[1]]
    return min(start for start, _ in used), max(end for _, end in used)


def _keys(kv: Operand, windows: list[tuple[int, int]], is_read_once: bool) -> Callable[[int, int], Tensor]:
    """Return a function of a key range that gives it decoded, padded with other keys or zeros to whole tiles.

    Keys that several groups of queries read are decoded once and kept.
    """
    if is_read_once:
        return lambda begin, end: decode_padded(kv.rows(begin, end))
    low, high = _union(windows)
    # One tile of zeros behind the last key, so that every range can be extended to whole tiles.
    decoded = torch.nn.functional.pad(decode(kv.rows(low, high)), (0, 0, 0, KEY_TILE))
    return lambda begin, end: decoded[begin - low : begin - low + aligned_keys(end - begin)]


def _clipped_windows(problem: MqaLogitsProblem) -> list[tuple[int, int]]:
    """Return the windows without keys that do not exist or have no column."""
    starts, ends = problem.starts.long(), problem.ends.long()
    limit = problem.kv.mn
    last = starts + problem.logits.shape[1] if problem.is_compressed else torch.full_like(ends, limit)
    return list(zip(starts.clamp(min=0).tolist(), torch.minimum(ends, last).clamp(max=limit).tolist(), strict=True))


def _query_groups(windows: list[tuple[int, int]], max_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield ranges first..last-1 of neighbouring queries whose windows overlap well; empty windows at the ends are left out."""
    first = last = 0
    low, high, useful = 0, 0, 0
    for i, (start, end) in enumerate(windows):
        if start >= end:
            continue
        if last > first:
            joined_low, joined_high = min(low, start), max(high, end)
            joined_useful = useful + end - start
            scored = (joined_high - joined_low) * (i + 1 - first)
            # A tile of slack per token: shorter scraps are scored anyway.
            if i - first < max_tokens and scored <= joined_useful * (1 + MAX_WASTE) + KEY_TILE * (i + 1 - first):
                last, low, high, useful = i + 1, joined_low, joined_high, joined_useful
                continue
            yield first, last
        first, last, low, high, useful = i, i + 1, start, end, end - start
    if last > first:
        yield first, last


def paged_mqa_logits(problem: PagedMqaLogitsProblem) -> None:
    """Score the tokens of one request together, against as many of its pages at a time as fit the intermediate."""
    logits, heads, cache = problem.logits, problem.num_heads, problem.cache
    if problem.fills_outside:
        logits.fill_(-torch.inf)
    lengths = problem.context_lens.flatten().clamp(0, problem.max_visible).tolist()
    weights = problem.weights.float()
    scorer = Scorer(heads)
    for row, first, last in _requests(problem, tokens_per_tile(heads)):
        longest = max(lengths[first:last])
        if longest == 0:
            continue
        q = decode(problem.q.rows(first * heads, last * heads))
        pages = problem.block_table[row, : -(-longest // cache.page_kv)].long()
        pages_per_tile = keys_per_tile(q.shape[0]) // cache.page_kv
        for page in range(0, len(pages), pages_per_tile):
            keys = decode_padded(cache.gather(pages[page : page + pages_per_tile]))
            tile = scorer.logits(q, weights[first:last], keys)
            begin = page * cache.page_kv
            for i in range(first, last):
                if lengths[i] > begin:
                    stop = min(lengths[i], begin + keys.shape[0])
                    logits[i, begin:stop] = tile[i - first, : stop - begin]


def _requests(problem: PagedMqaLogitsProblem, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Yield (block table row, first token, last token + 1) of tokens that see the same pages."""
    batch, next_n = problem.context_lens.shape
    shared = _equal_neighbours(problem.requests, batch)
    row = 0
    while row < batch:
        end = row + 1
        while end < batch and shared[end]:
            end += 1
        for first in range(row * next_n, end * next_n, max_tokens):
            yield row, first, min(first + max_tokens, end * next_n)
        row = end


def _equal_neighbours(requests: Tensor | None, batch: int) -> list[bool]:
    """Return for each batch row whether it belongs to the request of the row before."""
    if requests is None:
        return [False] * batch
    ids = requests.tolist()
    return [i > 0 and ids[i] == ids[i - 1] for i in range(batch)]
