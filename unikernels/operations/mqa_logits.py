"""MQA logits of the lightning indexer over contiguous and paged keys: problems and definitions.

    logit(i, j) = sum over h of weights[i, h] * relu(dot(q[i, h], key[j]))

Scoring of selected key blocks only is in mqa_sparse.py, cases are in mqa_cases.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..scale_layouts import ScaleFormat, Scales
from .base import Operation, cases_in
from .gemm import dequantise
from .operands import Kind, Operand


@dataclass(frozen=True, slots=True)
class MqaLogitsProblem:
    """Logits of every query against the keys start <= j < end of its own window.

    Attributes:
        q: operand [num_queries * num_heads, head_dim], row i * num_heads + h; scales along head_dim or none.
        kv: operand [num_keys, head_dim]; one float32 scale per key, or MX scales.
        weights: [num_queries, num_heads] float32 or bfloat16, unit stride along heads.
        starts, ends: [num_queries] int32; start >= end is an empty window. Keys outside 0..num_keys-1 do not exist.
        logits: [num_queries, columns] float32 or bfloat16, rows at a pitch; key j goes to column j, or j - start if
            `is_compressed`; columns beyond the last are dropped.
        is_compressed: whether column 0 is the first key of the row's window.
        fills_outside: whether all other entries become -inf; else they are unspecified.
        schedule: what the backend's `mqa_logits_metadata` returned for these windows; may only affect speed.
    """

    q: Operand
    kv: Operand
    weights: Tensor
    starts: Tensor
    ends: Tensor
    logits: Tensor
    is_compressed: bool
    fills_outside: bool
    schedule: Tensor | None = None

    @property
    def num_heads(self) -> int:
        return self.weights.shape[1]


@dataclass(frozen=True, slots=True)
class PagedKeys:
    """A fused key cache. A page is planar: the data of all its keys, then the scales of all its keys.

    Attributes:
        storage: uint8 [num_pages, page_kv, 1, data bytes + scale bytes of one key]. The last three dimensions are dense
            but only a carrier of page bytes; pages may stand at any pitch.
        kind: "fp8" or "fp4".
        head_dim: elements of one key.
        scale_format: FP32 (one scale per key), or packed exponents of 32-element blocks.
    """

    storage: Tensor
    kind: Kind
    head_dim: int
    scale_format: ScaleFormat

    @property
    def num_pages(self) -> int:
        return self.storage.shape[0]

    @property
    def page_kv(self) -> int:
        """Keys per page."""
        return self.storage.shape[1]

    @property
    def data_bytes(self) -> int:
        """Bytes of one key's data."""
        return self.head_dim // 2 if self.kind == "fp4" else self.head_dim

    @property
    def scale_bytes(self) -> int:
        """Bytes of one key's scales."""
        return self.storage.shape[3] - self.data_bytes

    def planes(self, block: int) -> tuple[Tensor, Tensor]:
        """Return uint8 views of data and scales, [num_pages, page_kv / block, bytes of `block` keys] each."""
        counts = (self.num_pages, self.page_kv // block)
        pitch, first = self.storage.stride(0), self.storage.storage_offset()
        views = []
        for size, offset in ((self.data_bytes, 0), (self.scale_bytes, self.page_kv * self.data_bytes)):
            views.append(self.storage.as_strided((*counts, block * size), (pitch, block * size, 1), first + offset))
        return views[0], views[1]

    def operand(self, data: Tensor, scales: Tensor) -> Operand:
        """Read gathered bytes [.., keys * data_bytes] and [.., keys * scale_bytes] as one operand [keys, head_dim]."""
        dtype = torch.float8_e4m3fn if self.kind == "fp8" else torch.int8
        values = data.reshape(-1, self.data_bytes).view(dtype)
        words = scales.reshape(-1, self.scale_bytes).view(self.scale_format.dtype)
        return key_operand(values, self.kind, words, self.scale_format)

    def gather(self, page_ids: Tensor) -> Operand:
        """Return all keys of the given pages (int64 [n], clamped to existing pages), in that order."""
        ids = page_ids.clamp(0, self.num_pages - 1)
        data, scales = (plane.index_select(0, ids) for plane in self.planes(self.page_kv))
        return self.operand(data, scales)


def key_operand(data: Tensor, kind: Kind, scales: Tensor, scale_format: ScaleFormat) -> Operand:
    """Describe keys [n, head_dim] with scales [n, words]; float32 means one scale per key, words mean 32-blocks."""
    num_keys, columns = data.shape
    head_dim = columns * 2 if kind == "fp4" else columns
    gran_k = 32 if scale_format.is_packed else head_dim
    return Operand(data, kind, num_keys, head_dim, True, Scales(scales, scale_format, 1, gran_k, num_keys, head_dim))


@dataclass(frozen=True, slots=True)
class PagedMqaLogitsProblem:
    """Logits of the tokens of each batch row against the first `context_lens` keys of its sequence.

    Attributes:
        q: operand [batch * next_n * num_heads, head_dim], heads innermost.
        cache: the paged keys.
        weights: [batch * next_n, num_heads] float32 or bfloat16, unit stride along heads.
        context_lens: [batch, next_n] int32, keys each token sees.
        block_table: [batch, width] int32, unit stride along width: physical page of each logical page. Only the pages
            that some length reaches are meaningful; the others may hold anything.
        logits: [batch * next_n, max_context_len] float32 or bfloat16, rows at a pitch.
        fills_outside: whether entries from context_lens on become -inf; else they are unspecified.
        requests: [batch] int32 request of each row (next_n = 1): equal neighbours have equal block_table rows.
        schedule: what the backend's `paged_mqa_logits_metadata` returned; may only affect speed.
    """

    q: Operand
    cache: PagedKeys
    weights: Tensor
    context_lens: Tensor
    block_table: Tensor
    logits: Tensor
    fills_outside: bool
    requests: Tensor | None = None
    schedule: Tensor | None = None

    @property
    def num_heads(self) -> int:
        return self.weights.shape[1]

    @property
    def next_n(self) -> int:
        return self.context_lens.shape[1]

    @property
    def max_visible(self) -> int:
        """Keys a row can have at most: columns of the output, and what the table can address."""
        return min(self.logits.shape[1], self.block_table.shape[1] * self.cache.page_kv)


def weighted_logits(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """Return sum over h of weights[h] * relu(q[h] . keys[j]) for float64 q [heads, dim] and keys [n, dim]."""
    return weights.double() @ (q @ keys.T).relu()


def mqa_logits_reference(problem: MqaLogitsProblem) -> None:
    """One query at a time in float64, one rounding."""
    q = dequantise(problem.q).unflatten(0, (-1, problem.num_heads))
    keys = dequantise(problem.kv)
    num_columns = problem.logits.shape[1]
    if problem.fills_outside:
        problem.logits.fill_(-torch.inf)
    for i, (start, end) in enumerate(zip(problem.starts.tolist(), problem.ends.tolist(), strict=True)):
        first_column = start if problem.is_compressed else 0
        first, last = max(start, 0), min(end, keys.shape[0], first_column + num_columns)
        if first < last:
            row = weighted_logits(q[i], keys[first:last], problem.weights[i])
            problem.logits[i, first - first_column : last - first_column] = row


def paged_mqa_logits_reference(problem: PagedMqaLogitsProblem) -> None:
    """One token at a time in float64, one rounding; only pages that a length reaches are read."""
    q = dequantise(problem.q).unflatten(0, (-1, problem.num_heads))
    if problem.fills_outside:
        problem.logits.fill_(-torch.inf)
    for row, length in enumerate(problem.context_lens.flatten().tolist()):
        length = min(length, problem.max_visible)
        if length > 0:
            num_pages = -(-length // problem.cache.page_kv)
            pages = problem.block_table[row // problem.next_n, :num_pages].long()
            keys = dequantise(problem.cache.gather(pages))[:length]
            problem.logits[row, :length] = weighted_logits(q[row], keys, problem.weights[row])


MQA_LOGITS = Operation(
    name="mqa_logits",
    problem=MqaLogitsProblem,
    reference=mqa_logits_reference,
    cases=cases_in("mqa_cases", "mqa_logits_cases"),
    summary="indexer logits sum_h w[i,h] * relu(q[i,h] . kv[j]) over a window of contiguous keys per query",
)

PAGED_MQA_LOGITS = Operation(
    name="paged_mqa_logits",
    problem=PagedMqaLogitsProblem,
    reference=paged_mqa_logits_reference,
    cases=cases_in("mqa_cases", "paged_mqa_logits_cases"),
    summary="indexer logits over the paged key cache of each sequence",
)
