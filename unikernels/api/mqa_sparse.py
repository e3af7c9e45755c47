"""MQA logits of selected key blocks only, over contiguous and paged keys, and the metadata that carries the selection.

Logits of whole windows are in mqa_logits.py, the bytes of the metadata in mqa_sparse_metadata.py.
Contract: DeepGEMM 2.8.2; differences are listed in docs/compatibility.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import validate, validate_mqa
from .._registry import bound
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..operations.mqa_sparse import PagedSparseMqaLogitsProblem, SparseMqaLogitsProblem
from ..validate_mqa import Queries
from . import mqa_sparse_metadata
from .keyword_aliases import accepts_alias
from .runtime import get_num_sms

_HEAD_DIM = 128
_MAX_HEADS = 32
_MAX_BLOCKS = 4096
_MAX_TOKENS = 1 << 20
_BLOCK_SIZES = (8, 16)
_PAGE_PITCH_BYTES = 128


def _block_size(function: str, value: object) -> int:
    if not isinstance(value, int) or value not in _BLOCK_SIZES:
        raise InvalidArgumentError(f"{function}: sparse_block_kv is {value!r}, expected 8 or 16 keys per block.")
    return value


def _num_blocks(function: str, name: str, value: object) -> int:
    count = validate_mqa.require_count(function, name, value, 1)
    if count % 4 or count > _MAX_BLOCKS:
        raise InvalidArgumentError(
            f"{function}: {name} is {count}, expected a multiple of 4 up to {_MAX_BLOCKS}. Repeat the last block to fill a row."
        )
    return count


def _flag(function: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{function}: {name} is {value!r}, expected a bool.")
    return value


def _is_fp4(function: str, qk_dtype: object) -> bool:
    if not isinstance(qk_dtype, torch.dtype):
        raise ArgumentTypeError(
            f"{function}: qk_dtype is {qk_dtype!r}, expected torch.float8_e4m3fn or torch.int8 (packed FP4)."
        )
    return validate_mqa.quantised_kind(function, "qk_dtype", qk_dtype) == "fp4"


def _blocks(function: str, value: object) -> Tensor:
    """Check block numbers [t, nb]: int32, contiguous."""
    blocks = validate.require_tensor(function, "sparse_kv_block_indices", value)
    validate.require_dtype(function, "sparse_kv_block_indices", blocks, torch.int32)
    if blocks.ndim != 2 or not 1 <= blocks.shape[0] <= _MAX_TOKENS:
        raise InvalidArgumentError(
            f"{function}: sparse_kv_block_indices has shape {validate.shape_of(blocks)}, expected (tokens, blocks per token) with "
            f"1 to {_MAX_TOKENS} tokens."
        )
    _num_blocks(function, "sparse_kv_block_indices.shape[1]", blocks.shape[1])
    validate.require_contiguous(function, "sparse_kv_block_indices", blocks)
    return blocks


def get_sparse_mqa_logits_metadata(
    cu_seq_len_k_start: Tensor,
    cu_seq_len_k_end: Tensor,
    num_kv_tokens: int,
    sparse_kv_block_indices: Tensor,
    qk_dtype: torch.dtype,
    sparse_block_kv: int,
    use_unaligned_ks: bool = False,
) -> Tensor:
    """Return metadata for `fp8_fp4_sparse_mqa_logits`: the windows and selected blocks, as an opaque uint8 tensor.

    Args:
        cu_seq_len_k_start, cu_seq_len_k_end: int32 [t] window of each query token; start >= end is empty.
        num_kv_tokens: keys, at least 1.
        sparse_kv_block_indices: int32 [t, nb], contiguous, nb a multiple of 4 up to 4096. Row i uses its first
            min(nb, ceil((end - start) / sparse_block_kv)) entries: different block numbers in increasing order within the
            window. Later entries are never used (repeat the last one).
        qk_dtype: dtype of q and kv: float8_e4m3fn, or int8 for packed FP4.
        sparse_block_kv: keys per block, 8 or 16.
        use_unaligned_ks: block x starts at key x * sparse_block_kv + start % sparse_block_kv instead of
            x * sparse_block_kv (which expects starts that are multiples of sparse_block_kv).

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks.

    Contract: DeepGEMM 2.8.2, `get_sparse_mqa_logits_metadata`.
    """
    function = "get_sparse_mqa_logits_metadata"
    blocks = _blocks(function, sparse_kv_block_indices)
    shape = (blocks.shape[0],)
    starts = validate_mqa.lengths(function, "cu_seq_len_k_start", cu_seq_len_k_start, shape, "one window per token")
    ends = validate_mqa.lengths(function, "cu_seq_len_k_end", cu_seq_len_k_end, shape, "one window per token")
    validate.require_same_device(function, blocks, cu_seq_len_k_start=starts, cu_seq_len_k_end=ends)
    made = mqa_sparse_metadata.Made(
        is_paged=False,
        num_sms=get_num_sms(),
        is_fp4=_is_fp4(function, qk_dtype),
        sparse_block_kv=_block_size(function, sparse_block_kv),
        num_max_sparse_blocks=blocks.shape[1],
        use_unaligned_ks=_flag(function, "use_unaligned_ks", use_unaligned_ks),
        num_tokens=blocks.shape[0],
        num_kv_tokens=validate_mqa.require_count(function, "num_kv_tokens", num_kv_tokens, 1),
        page_kv=0,
    )
    return mqa_sparse_metadata.write(made, starts, ends, torch.zeros_like(starts), blocks, None)


def get_paged_sparse_mqa_logits_metadata(
    context_lens: Tensor,
    block_table: Tensor,
    indices: Tensor,
    page_kv: int,
    sparse_kv_block_indices: Tensor,
    qk_dtype: torch.dtype,
    sparse_block_kv: int,
) -> Tensor:
    """Return metadata for `fp8_fp4_paged_sparse_mqa_logits`: lengths, selected blocks and their pages, opaque uint8.

    Args:
        context_lens: int32, t elements: token i sees keys 0 .. length - 1 of its sequence.
        block_table: int32 [t, pages per sequence], unit last stride; rows of one request are equal. Only the pages of used
            blocks are looked up.
        indices: int32 [t] request of each token; tokens of one request stand together.
        page_kv: keys per page: 32, 64 or 128.
        sparse_kv_block_indices: int32 [t, nb] block numbers within the sequence, otherwise as in
            `get_sparse_mqa_logits_metadata`.
        qk_dtype: dtype of q and of the cached keys: float8_e4m3fn, or int8 for packed FP4.
        sparse_block_kv: keys per block, 8 or 16.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks.

    Contract: DeepGEMM 2.8.2, `get_paged_sparse_mqa_logits_metadata`.
    """
    function = "get_paged_sparse_mqa_logits_metadata"
    blocks = _blocks(function, sparse_kv_block_indices)
    num_tokens = blocks.shape[0]
    lens = validate.require_tensor(function, "context_lens", context_lens)
    lens = validate_mqa.lengths(function, "context_lens", lens.reshape(-1), (num_tokens,), "one length per token")
    requests = validate_mqa.lengths(function, "indices", indices, (num_tokens,), "the request of each token")
    table = validate_mqa.block_table(function, block_table, num_tokens, blocks)
    if not table.shape[1]:
        raise InvalidArgumentError(
            f"{function}: block_table has shape {validate.shape_of(table)}, expected at least one column."
        )
    validate.require_same_device(function, blocks, context_lens=lens, indices=requests)
    if isinstance(page_kv, bool) or page_kv not in validate_mqa.PAGE_SIZES:
        raise InvalidArgumentError(
            f"{function}: page_kv is {page_kv!r}, expected {', '.join(map(str, validate_mqa.PAGE_SIZES))} keys per page."
        )
    block_kv = _block_size(function, sparse_block_kv)
    made = mqa_sparse_metadata.Made(
        is_paged=True,
        num_sms=get_num_sms(),
        is_fp4=_is_fp4(function, qk_dtype),
        sparse_block_kv=block_kv,
        num_max_sparse_blocks=blocks.shape[1],
        use_unaligned_ks=False,
        num_tokens=num_tokens,
        num_kv_tokens=0,
        page_kv=page_kv,
    )
    # Unused entries may hold anything: their column is clamped into the table, and nobody reads the page found there.
    columns = (blocks.long() // (page_kv // block_kv)).clamp(0, table.shape[1] - 1)
    pages = table.gather(1, columns)
    return mqa_sparse_metadata.write(made, torch.zeros_like(lens), lens, requests, blocks, pages)


def _queries(function: str, q: object, form: tuple[str, ...]) -> Queries:
    checked = validate_mqa.queries(function, q, form, _MAX_HEADS)
    if checked.operand.scales is None:
        raise InvalidArgumentError(
            f"{function}: q[1] is None, expected int32 (or int16) scales: blocks are scored in MX mode only."
        )
    if checked.head_dim != _HEAD_DIM:
        raise InvalidArgumentError(f"{function}: head_dim is {checked.head_dim}, expected {_HEAD_DIM}.")
    return checked


def _expected(
    function: str,
    q: Queries,
    num_blocks: object,
    block_kv: object,
    use_unaligned_ks: object,
    num_keys: int,
    page_kv: int,
) -> mqa_sparse_metadata.Made:
    return mqa_sparse_metadata.Made(
        is_paged=page_kv > 0,
        num_sms=get_num_sms(),
        is_fp4=q.operand.kind == "fp4",
        sparse_block_kv=_block_size(function, block_kv),
        num_max_sparse_blocks=_num_blocks(function, "num_max_sparse_blocks", num_blocks),
        use_unaligned_ks=_flag(function, "use_unaligned_ks", use_unaligned_ks),
        num_tokens=q.leading[0],
        num_kv_tokens=num_keys,
        page_kv=page_kv,
    )


def _empty_logits(made: mqa_sparse_metadata.Made, q: Queries) -> Tensor:
    columns = made.num_max_sparse_blocks * made.sparse_block_kv
    return validate_mqa.empty_logits(made.num_tokens, columns, torch.bfloat16, q.device)


def fp8_fp4_sparse_mqa_logits(
    q: tuple[Tensor, Tensor],
    kv: tuple[Tensor, Tensor],
    weights: Tensor,
    metadata: Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
    use_unaligned_ks: bool = False,
) -> Tensor:
    """Compute logit(i, j) = sum_h weights[i, h] * relu(dot(q[i, h], kv[j])) for the keys j of selected blocks.

    Args:
        q: (data, scales). data [t, heads, 128] float8_e4m3fn or packed FP4 [t, heads, 64], heads a multiple of 4 up to 32;
            scales int32 [t, heads] (or int16 [t, heads, 2]).
        kv: (data [n, 128] or [n, 64], scales int32 [n] or int16 [n, 2]).
        weights: [t, heads] bfloat16, rows at multiples of 16 bytes.
        metadata: what `get_sparse_mqa_logits_metadata` returned for these tokens and keys.
        num_max_sparse_blocks, sparse_block_kv, use_unaligned_ks: as there (nb = num_max_sparse_blocks).

    Returns:
        [t, nb * sparse_block_kv] bfloat16, a view with rows at multiples of 512 elements. Column s * sparse_block_kv + o is
        key o of the row's block s, with the same bits as from `fp8_fp4_mqa_logits`; keys outside the window and unused
        blocks are unspecified.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks, or saying how metadata differs from this call.

    Contract: DeepGEMM 2.8.2, `fp8_fp4_sparse_mqa_logits`; int16 scales are ours.
    """
    function = "fp8_fp4_sparse_mqa_logits"
    checked = _queries(function, q, ("tokens",))
    keys = validate_mqa.keys(function, kv, checked)
    (num_tokens,) = checked.leading
    head_weights = validate_mqa.weights(function, weights, checked, num_tokens, (torch.bfloat16,))
    made = _expected(function, checked, num_max_sparse_blocks, sparse_block_kv, use_unaligned_ks, keys.mn, 0)
    logits = _empty_logits(made, checked)
    if not num_tokens:  # no metadata exists for zero tokens
        return logits
    selection = mqa_sparse_metadata.read(function, metadata, made)
    validate.require_same_device(function, head_weights, metadata=selection.blocks)
    problem = SparseMqaLogitsProblem(
        checked.operand,
        keys,
        head_weights,
        selection.starts,
        selection.ends,
        selection.blocks,
        made.sparse_block_kv,
        made.use_unaligned_ks,
        logits,
    )
    bound("sparse_mqa_logits", logits)(problem)
    return logits


@accepts_alias("kv_cache", "fused_kv_cache")
def fp8_fp4_paged_sparse_mqa_logits(
    q: tuple[Tensor, Tensor],
    kv_cache: Tensor,
    weights: Tensor,
    metadata: Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
    *,
    fused_kv_cache: Tensor | None = None,
) -> Tensor:
    """Compute the logits of `fp8_fp4_sparse_mqa_logits` for paged keys.

    Args:
        q: (data [t, 1, heads, 128] or [t, 1, heads, 64], scales int32 [t, 1, heads] or int16 [t, 1, heads, 2]).
        kv_cache: uint8 [pages, page_kv, 1, bytes per key], planar pages as in `fp8_fp4_paged_mqa_logits`; page pitch a
            multiple of 128 bytes, base aligned to 16 bytes. `fused_kv_cache` is another name for it.
        weights: [t, heads] bfloat16.
        metadata: what `get_paged_sparse_mqa_logits_metadata` returned for these tokens.
        num_max_sparse_blocks, sparse_block_kv: as there.

    Returns:
        [t, nb * sparse_block_kv] bfloat16, as in `fp8_fp4_sparse_mqa_logits`.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks, or saying how metadata differs from this call.

    Contract: DeepGEMM 2.8.2, `fp8_fp4_paged_sparse_mqa_logits`; int16 scales are ours.
    """
    function = "fp8_fp4_paged_sparse_mqa_logits"
    checked = _queries(function, q, ("tokens", "1"))
    num_tokens, next_n = checked.leading
    if next_n != 1:
        raise InvalidArgumentError(
            f"{function}: q[0] has {next_n} tokens per row, expected 1: shape (tokens, 1, heads, head_dim)."
        )
    cache = validate_mqa.key_cache(function, kv_cache, checked, _PAGE_PITCH_BYTES)
    if not cache.storage.is_meta and cache.storage.data_ptr() % 16:
        raise InvalidArgumentError(
            f"{function}: kv_cache starts at an address that is no multiple of 16 bytes. Pass a copy of it."
        )
    head_weights = validate_mqa.weights(function, weights, checked, num_tokens, (torch.bfloat16,))
    made = _expected(function, checked, num_max_sparse_blocks, sparse_block_kv, False, 0, cache.page_kv)
    logits = _empty_logits(made, checked)
    if not num_tokens:  # no metadata exists for zero tokens
        return logits
    selection = mqa_sparse_metadata.read(function, metadata, made)
    assert selection.pages is not None
    validate.require_same_device(function, head_weights, metadata=selection.blocks)
    if cache.num_pages:
        problem = PagedSparseMqaLogitsProblem(
            checked.operand,
            cache,
            head_weights,
            selection.ends,
            selection.blocks,
            selection.pages,
            selection.requests,
            made.sparse_block_kv,
            logits,
        )
        bound("paged_sparse_mqa_logits", logits)(problem)
    return logits
