"""Schedules of the MQA logits kernels: opaque metadata that tells a backend how to share the work among its cores.

What a schedule contains is the backend's business (`Backend.mqa_logits_metadata`); it never changes a result.
Contract: DeepGEMM 2.8.2, 2.6.1 and Ascend; differences are listed in docs/compatibility.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from .. import _registry, validate, validate_mqa
from ..errors import ArgumentTypeError, InvalidArgumentError
from .runtime import get_num_sms

if TYPE_CHECKING:
    from ..backend import Backend


def get_mqa_logits_metadata(
    cu_seq_len_k_start: Tensor, cu_seq_len_k_end: Tensor, num_kv_tokens: int, num_heads: int
) -> Tensor:
    """Return scheduling metadata for `fp8_fp4_mqa_logits` with these windows, an opaque int32 tensor.

    Args:
        cu_seq_len_k_start, cu_seq_len_k_end: int32 [s], s > 0, as the compute call gets them.
        num_kv_tokens: keys, at least 1.
        num_heads: query heads, a multiple of 4 up to 128.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks.

    Contract: DeepGEMM 2.8.2, `get_mqa_logits_metadata`.
    """
    function = "get_mqa_logits_metadata"
    starts = validate.require_tensor(function, "cu_seq_len_k_start", cu_seq_len_k_start)
    if starts.ndim != 1 or not starts.numel():
        raise InvalidArgumentError(
            f"{function}: cu_seq_len_k_start has shape {validate.shape_of(starts)}, expected (queries,) with at least one query."
        )
    starts = validate_mqa.lengths(function, "cu_seq_len_k_start", starts, tuple(starts.shape), "one window per query")
    ends = validate_mqa.lengths(
        function, "cu_seq_len_k_end", cu_seq_len_k_end, tuple(starts.shape), "one window per query"
    )
    validate.require_same_device(function, starts, cu_seq_len_k_end=ends)
    validate_mqa.require_count(function, "num_kv_tokens", num_kv_tokens, 1)
    validate_mqa.require_heads(function, validate_mqa.require_count(function, "num_heads", num_heads, 1))
    return _backend(starts).mqa_logits_metadata(starts, ends, num_kv_tokens, num_heads, get_num_sms())


def get_paged_mqa_logits_metadata(
    context_lens: Tensor,
    block_kv: int | None = None,
    num_sms: int | None = None,
    indices: Tensor | None = None,
    *,
    num_heads: int | None = None,
) -> Tensor:
    """Return scheduling metadata for `fp8_fp4_paged_mqa_logits` with these lengths, an opaque int32 [num_sms + 1, 2].

    Ascend's positions (context_lens, num_heads, indices) are recognised by the tensor in the third place.

    Args:
        context_lens: int32 [b, next_n], at least one token; [b] counts as [b, 1].
        block_kv: keys per page: 32, 64 or 128.
        num_sms: `get_num_sms()`, which is also the default.
        indices: int32 [b] request of each row, for varlen batches (next_n = 1).
        num_heads: query heads; only some backends look at it.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks.

    Contract: DeepGEMM 2.6.1, 2.8.2 and Ascend, `get_paged_mqa_logits_metadata`.
    """
    function = "get_paged_mqa_logits_metadata"
    if isinstance(num_sms, Tensor):
        if indices is not None or num_heads is not None:
            raise ArgumentTypeError(
                f"{function}: num_sms is a tensor, which means (context_lens, num_heads, indices); indices or num_heads are "
                f"given as well."
            )
        num_heads, block_kv, indices, num_sms = block_kv, None, num_sms, None
    lens = validate_mqa.context_lens(function, context_lens)
    if not lens.numel():
        raise InvalidArgumentError(
            f"{function}: context_lens has shape {validate.shape_of(lens)}, expected at least one query token. The logits of an "
            f"empty batch need no metadata: pass schedule_meta=None."
        )
    if block_kv is not None and num_sms is not None and block_kv not in validate_mqa.PAGE_SIZES:
        raise InvalidArgumentError(
            f"{function}: block_kv is {block_kv!r}, expected {', '.join(map(str, validate_mqa.PAGE_SIZES))} keys per page."
        )
    count = get_num_sms()
    if num_sms is not None and validate_mqa.require_count(function, "num_sms", num_sms, 1) != count:
        raise InvalidArgumentError(
            f"{function}: num_sms is {num_sms}, expected get_num_sms() = {count}: a schedule fits one number of SMs. "
            f"Pass get_num_sms(), or call set_num_sms({num_sms}) first."
        )
    if num_heads is not None:
        validate_mqa.require_heads(function, validate_mqa.require_count(function, "num_heads", num_heads, 1))
    batch, next_n = lens.shape
    requests = validate_mqa.request_indices(function, indices, batch, next_n)
    validate.require_same_device(function, lens, indices=requests)
    return _backend(lens).paged_mqa_logits_metadata(lens, block_kv, count, requests, num_heads)


def _backend(tensor: Tensor) -> Backend:
    return _registry.current_backend() if tensor.is_meta else _registry.backend_for(tensor)
