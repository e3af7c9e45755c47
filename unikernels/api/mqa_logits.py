"""MQA logits of the lightning indexer over contiguous and paged keys, and their legacy names.

    logit(i, j) = sum over h of weights[i, h] * relu(dot(q[i, h], key[j]))

Schedule metadata is in mqa_schedules.py, scoring of selected key blocks only in mqa_sparse.py.
Contract: DeepGEMM 2.8.2 and 2.6.1; differences are listed in docs/compatibility.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import validate, validate_mqa
from .._registry import bound
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..operations.mqa_logits import MqaLogitsProblem, PagedMqaLogitsProblem
from .keyword_aliases import accepts_alias
from .runtime import get_num_sms

#: Queries or keys as they are passed: (data, scales); scales of queries are None in plain mode.
ScaledPair = tuple[Tensor, Tensor | None]


def fp8_fp4_mqa_logits(
    q: ScaledPair,
    kv: tuple[Tensor, Tensor],
    weights: Tensor,
    cu_seq_len_k_start: Tensor,
    cu_seq_len_k_end: Tensor,
    max_seqlen_k: int = 0,
    schedule_meta: Tensor | None = None,
    *,
    clean_logits: bool | None = None,
    logits_dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute logit(i, j) = sum_h weights[i, h] * relu(dot(q[i, h], kv[j])) for start[i] <= j < end[i].

    Args:
        q: (data, scales). data [s, heads, dim] float8_e4m3fn, or packed FP4 [s, heads, dim/2]; contiguous, heads a multiple
            of 4 up to 128, dim 32, 64 or 128 (FP4: 64 or 128). scales: None (plain FP8), int32 [s, heads] (one word of up
            to four exponents of 32-element blocks, low byte first), or int16 [s, heads, dim/64].
        kv: (data [n, dim], scales): float32 [n] in plain mode, int32 [n], or int16 [n, dim/64], as q's.
        weights: [s, heads] float32 or bfloat16, unit stride along heads, rows at multiples of 16 bytes.
        cu_seq_len_k_start, cu_seq_len_k_end: int32 [s]; start >= end is an empty window.
        max_seqlen_k: columns of the compressed form, at least the longest window; 0 asks for the full form. A bool here is
            read as clean_logits (2.6.1's sixth argument), and an int after it as max_seqlen_k.
        schedule_meta: what `get_mqa_logits_metadata` returned for the same windows; never changes the result.
        clean_logits: full form only: whether entries outside the window become -inf (default) or stay unspecified.
        logits_dtype: float32 or bfloat16; default bfloat16 if the weights are, else float32.

    Returns:
        Compressed: [s, max_seqlen_k], column j - start[i]; entries from end[i] - start[i] on are unspecified.
        Full: [s, n], column j. A view whose rows start at multiples of 1024 bytes (stride(0) is the pitch).

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks.

    Contract: DeepGEMM 2.8.2, `fp8_fp4_mqa_logits`, and 2.6.1's form of the same name.
    """
    function = "fp8_fp4_mqa_logits"
    if isinstance(max_seqlen_k, bool):
        if clean_logits is not None:
            raise InvalidArgumentError(
                f"{function}: the sixth argument is a bool, which means clean_logits, and clean_logits is given as well."
            )
        clean_logits, max_seqlen_k = max_seqlen_k, 0
        if isinstance(schedule_meta, int):
            max_seqlen_k, schedule_meta = schedule_meta, None
    return _dense(
        function,
        q,
        kv,
        weights,
        cu_seq_len_k_start,
        cu_seq_len_k_end,
        max_seqlen_k,
        schedule_meta,
        clean_logits,
        logits_dtype,
    )


def _dense(
    function: str,
    q: object,
    kv: object,
    weights: object,
    starts: object,
    ends: object,
    max_seqlen_k: object,
    schedule: object,
    clean_logits: bool | None,
    logits_dtype: object,
) -> Tensor:
    checked = validate_mqa.queries(function, q, ("queries",))
    (num_queries,) = checked.leading
    keys = validate_mqa.keys(function, kv, checked)
    head_weights = validate_mqa.weights(function, weights, checked, num_queries)
    starts = validate_mqa.lengths(function, "cu_seq_len_k_start", starts, (num_queries,), "one window per query")
    ends = validate_mqa.lengths(function, "cu_seq_len_k_end", ends, (num_queries,), "one window per query")
    max_seqlen_k = validate_mqa.require_count(function, "max_seqlen_k", max_seqlen_k, 0)
    is_compressed = max_seqlen_k > 0
    fills_outside = _clean(function, clean_logits, not is_compressed)
    if is_compressed and fills_outside:
        raise InvalidArgumentError(
            f"{function}: clean_logits=True with max_seqlen_k={max_seqlen_k}: the compressed form leaves entries past a window "
            f"unspecified. Pass clean_logits=False, or max_seqlen_k=0 for the full form."
        )
    dtype = validate_mqa.logits_dtype(function, logits_dtype, head_weights)
    schedule = _schedule(function, schedule, 1)
    validate.require_same_device(
        function, head_weights, cu_seq_len_k_start=starts, cu_seq_len_k_end=ends, schedule_meta=schedule
    )
    logits = validate_mqa.empty_logits(num_queries, max_seqlen_k or keys.mn, dtype, checked.device)
    if logits.numel() and keys.mn:
        problem = MqaLogitsProblem(
            checked.operand, keys, head_weights, starts, ends, logits, is_compressed, fills_outside, schedule
        )
        bound("mqa_logits", logits)(problem)
    return logits


def _clean(function: str, clean_logits: object, default: bool) -> bool:
    if clean_logits is None:
        return default
    if not isinstance(clean_logits, bool):
        raise ArgumentTypeError(f"{function}: clean_logits is {clean_logits!r}, expected a bool.")
    return clean_logits


def _schedule(function: str, value: object, ndim: int) -> Tensor | None:
    """Check opaque scheduling metadata; None lets the backend schedule by itself."""
    if value is None:
        return None
    tensor = validate.require_tensor(function, "schedule_meta", value)
    validate.require_dtype(function, "schedule_meta", tensor, torch.int32)
    source = "get_mqa_logits_metadata" if ndim == 1 else "get_paged_mqa_logits_metadata"
    if tensor.ndim != ndim:
        raise InvalidArgumentError(
            f"{function}: schedule_meta has shape {validate.shape_of(tensor)}, expected what {source} returns ({ndim}-D)."
        )
    if ndim == 2:
        validate.require_shape(
            function, "schedule_meta", tensor, (get_num_sms() + 1, 2), f"made by {source} for get_num_sms() SMs"
        )
    return tensor


@accepts_alias("kv_cache", "fused_kv_cache")
def fp8_fp4_paged_mqa_logits(
    q: ScaledPair,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    schedule_meta: Tensor | None,
    max_context_len: int,
    indices: Tensor | None = None,
    *,
    clean_logits: bool | None = None,
    logits_dtype: torch.dtype | None = None,
    use_ascend_kv_layout: bool = False,
    fused_kv_cache: Tensor | None = None,
) -> Tensor:
    """Compute logit(b, t, j) = sum_h weights[b*next_n + t, h] * relu(dot(q[b, t, h], key j of sequence b)), j < length.

    Key j of sequence b is slot j % page_kv of physical page block_table[b, j // page_kv].

    Args:
        q: (data [b, next_n, heads, dim] or [.., dim/2], scales None, int32 [b, next_n, heads] or int16 [.., dim/64]); modes
            as in `fp8_fp4_mqa_logits`.
        kv_cache: uint8 [pages, page_kv, 1, data bytes + scale bytes of a key], page_kv 32, 64 or 128, any page pitch that is
            a multiple of 4. A page is planar: the data of its keys one after the other, then their scales (float32 in plain
            mode, int32 words, or int16 words). `fused_kv_cache` is another name for it.
        weights: [b*next_n, heads] float32 or bfloat16.
        context_lens: int32 [b, next_n], how many keys each token sees; [b] counts as [b, 1].
        block_table: int32 [b, pages per sequence], unit last stride. Entries that no length reaches are never used.
        schedule_meta: what `get_paged_mqa_logits_metadata` returned; None lets the backend schedule by itself.
        max_context_len: columns of the result.
        indices: int32 [b] request of each row, for varlen batches (next_n = 1): rows of one request stand together and
            have equal block_table rows. A bool here is read as clean_logits (2.6.1's eighth argument).
        clean_logits: whether entries from the length on become -inf; by default they are unspecified.
        logits_dtype: float32 or bfloat16; default bfloat16 if the weights are, else float32.
        use_ascend_kv_layout: False; the other layout is not specified.

    Returns:
        [b*next_n, max_context_len], a view whose rows start at multiples of 1024 bytes.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks.

    Contract: DeepGEMM 2.8.2, `fp8_fp4_paged_mqa_logits`, 2.6.1's and Ascend's forms of the same name.
    """
    function = "fp8_fp4_paged_mqa_logits"
    if isinstance(indices, bool):
        if clean_logits is not None:
            raise InvalidArgumentError(
                f"{function}: the eighth argument is a bool, which means clean_logits, and clean_logits is given as well."
            )
        clean_logits, indices = indices, None
    if use_ascend_kv_layout:
        raise InvalidArgumentError(
            f"{function}: use_ascend_kv_layout is {use_ascend_kv_layout!r}, expected False: pages are planar on every backend."
        )
    return _paged(
        function,
        q,
        kv_cache,
        weights,
        context_lens,
        block_table,
        schedule_meta,
        max_context_len,
        indices,
        clean_logits,
        logits_dtype,
    )


def _paged(
    function: str,
    q: object,
    kv_cache: object,
    weights: object,
    context_lens: object,
    block_table: object,
    schedule: object,
    max_context_len: object,
    indices: object,
    clean_logits: object,
    logits_dtype: object,
) -> Tensor:
    checked = validate_mqa.queries(function, q, ("batch", "next_n"))
    batch, next_n = checked.leading
    cache = validate_mqa.key_cache(function, kv_cache, checked)
    head_weights = validate_mqa.weights(function, weights, checked, batch * next_n)
    lens = validate_mqa.context_lens(function, context_lens, batch, next_n)
    table = validate_mqa.block_table(function, block_table, batch, head_weights)
    columns = validate_mqa.require_count(function, "max_context_len", max_context_len, 0)
    requests = validate_mqa.request_indices(function, indices, batch, next_n)
    fills_outside = _clean(function, clean_logits, False)
    dtype = validate_mqa.logits_dtype(function, logits_dtype, head_weights)
    schedule = _schedule(function, schedule, 2) if batch else None
    validate.require_same_device(function, head_weights, context_lens=lens, indices=requests, schedule_meta=schedule)
    logits = validate_mqa.empty_logits(batch * next_n, columns, dtype, checked.device)
    if logits.numel():
        if cache.num_pages == 0 or table.shape[1] == 0:  # no key exists, so every window is empty
            return logits.fill_(-torch.inf) if fills_outside else logits
        problem = PagedMqaLogitsProblem(
            checked.operand, cache, head_weights, lens, table, logits, fills_outside, requests, schedule
        )
        bound("paged_mqa_logits", logits)(problem)
    return logits


def _plain_queries(function: str, q: object) -> tuple[Tensor, None]:
    if not isinstance(q, Tensor):
        raise ArgumentTypeError(
            f"{function}: q is a {type(q).__name__}, expected a float8_e4m3fn tensor. With scales call {function[:3]}_fp4"
            f"{function[3:]}."
        )
    validate.require_dtype(function, "q", q, torch.float8_e4m3fn)
    return q, None


def fp8_mqa_logits(
    q: Tensor,
    kv: tuple[Tensor, Tensor],
    weights: Tensor,
    cu_seq_len_k_start: Tensor,
    cu_seq_len_k_end: Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
) -> Tensor:
    """Compute logit(i, j) = sum_h weights[i, h] * relu(dot(q[i, h], kv[j])) in plain FP8 mode, float32 logits.

    Args:
        q: [s, heads, dim] float8_e4m3fn.
        kv: (data [n, dim] float8_e4m3fn, scales [n] float32).
        weights, cu_seq_len_k_start, cu_seq_len_k_end, max_seqlen_k: as in `fp8_fp4_mqa_logits`.
        clean_logits: full form: whether entries outside the window become -inf. Must be False with max_seqlen_k > 0.

    Returns:
        [s, n], or [s, max_seqlen_k], float32, as in `fp8_fp4_mqa_logits`.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks.

    Contract: DeepGEMM 2.6.1, `fp8_mqa_logits`.
    """
    function = "fp8_mqa_logits"
    return _dense(
        function,
        _plain_queries(function, q),
        kv,
        weights,
        cu_seq_len_k_start,
        cu_seq_len_k_end,
        max_seqlen_k,
        None,
        clean_logits,
        torch.float32,
    )


@accepts_alias("kv_cache", "fused_kv_cache")
def fp8_paged_mqa_logits(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    schedule_meta: Tensor | None,
    max_context_len: int,
    clean_logits: bool = False,
    indices: Tensor | None = None,
    *,
    fused_kv_cache: Tensor | None = None,
) -> Tensor:
    """Compute the logits of `fp8_fp4_paged_mqa_logits` in plain FP8 mode, float32 logits.

    Args:
        q: [b, next_n, heads, dim] float8_e4m3fn.
        kv_cache: uint8 [pages, page_kv, 1, dim + 4], planar pages with one float32 scale per key.
        clean_logits: whether entries from the length on become -inf.
        weights, context_lens, block_table, schedule_meta, max_context_len, indices: as there.

    Returns:
        [b*next_n, max_context_len] float32.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks.

    Contract: DeepGEMM 2.6.1, `fp8_paged_mqa_logits`.
    """
    function = "fp8_paged_mqa_logits"
    return _paged(
        function,
        _plain_queries(function, q),
        kv_cache,
        weights,
        context_lens,
        block_table,
        schedule_meta,
        max_context_len,
        indices,
        clean_logits,
        torch.float32,
    )
