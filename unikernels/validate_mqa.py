"""Argument checks of the MQA logits family: scale modes, heads and dims, key caches, windows, output allocation.

Shapes, dtypes and strides only; general checks are in validate.py, sparse metadata in api/mqa_sparse_metadata.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import validate
from .errors import ArgumentTypeError, InvalidArgumentError
from .operations.mqa_logits import PagedKeys, key_operand
from .operations.operands import Kind, Operand
from .scale_layouts import ScaleFormat, Scales
from .validate_plain import integer

#: Rows of logits start at multiples of this many bytes.
ROW_ALIGNMENT_BYTES = 1024
PAGE_SIZES = (32, 64, 128)
MAX_HEADS = 128
_MAX_COUNT = (1 << 31) - 1

_DIMS: dict[Kind, tuple[int, ...]] = {"fp8": (32, 64, 128), "fp4": (64, 128)}
_MODES = (
    "q scales None with float32 key scales (plain), int32 with int32 (MX, one word of four exponents), "
    "or int16 with int16 (two exponents a word)"
)
_FLOAT_DTYPES = (torch.float32, torch.bfloat16)


class Queries(NamedTuple):
    """Checked queries: the operand [rows * heads, dim] and what it was made from."""

    operand: Operand
    leading: tuple[int, ...]
    num_heads: int
    scale_format: ScaleFormat  # of the keys that belong to these queries

    @property
    def head_dim(self) -> int:
        return self.operand.k

    @property
    def device(self) -> torch.device:
        return self.operand.data.device


def quantised_kind(function: str, name: str, dtype: torch.dtype) -> Kind:
    """Return "fp8" or "fp4" for the dtype of quantised data."""
    if dtype is torch.float8_e4m3fn:
        return "fp8"
    if dtype in (torch.int8, torch.uint8, getattr(torch, "float4_e2m1fn_x2", torch.int8)):
        return "fp4"
    raise InvalidArgumentError(
        f"{function}: {name} is {dtype}, expected float8_e4m3fn, or packed FP4 as int8, uint8 or float4_e2m1fn_x2."
    )


def _payload(data: Tensor, kind: Kind) -> Tensor:
    return data.view(torch.int8) if kind == "fp4" and data.dtype is not torch.int8 else data


def require_count(function: str, name: str, value: object, minimum: int) -> int:
    """Refuse anything but an int of at least `minimum` that int32 windows can reach."""
    count = integer(function, name, value, minimum)
    if count > _MAX_COUNT:
        raise InvalidArgumentError(f"{function}: {name} is {count}, expected at most {_MAX_COUNT}: windows are int32.")
    return count


def require_heads(function: str, num_heads: int, maximum: int = MAX_HEADS) -> None:
    """Refuse a number of heads that no kernel has."""
    if num_heads % 4 or not 4 <= num_heads <= maximum:
        raise InvalidArgumentError(
            f"{function}: {num_heads} heads, expected a multiple of 4 from 4 to {maximum}. Pad q and weights with zero heads."
        )


def queries(function: str, q: object, form: tuple[str, ...], max_heads: int = MAX_HEADS) -> Queries:
    """Check q = (data, scales or None); `form` names the leading dimensions, for example ("batch", "next_n")."""
    if not isinstance(q, (tuple, list)) or len(q) != 2:
        raise ArgumentTypeError(
            f"{function}: q is a {type(q).__name__}, expected a pair (data, scales); scales are None for plain FP8."
        )
    data, scale = validate.require_tensor(function, "q[0]", q[0]), q[1]
    kind = quantised_kind(function, "q[0]", data.dtype)
    if data.ndim != len(form) + 2:
        raise InvalidArgumentError(
            f"{function}: q[0] has shape {validate.shape_of(data)}, expected ({', '.join(form)}, heads, head_dim)."
        )
    validate.require_contiguous(function, "q[0]", data)
    *leading, num_heads, columns = data.shape
    head_dim = columns * 2 if kind == "fp4" else columns
    if head_dim not in _DIMS[kind]:
        raise InvalidArgumentError(
            f"{function}: head_dim is {head_dim} ({kind} data of shape {validate.shape_of(data)}), expected "
            f"{' or '.join(map(str, _DIMS[kind]))} for {kind}."
        )
    require_heads(function, num_heads, max_heads)
    rows = _payload(data, kind).view(-1, columns) if data.numel() else _payload(data, kind).reshape(0, columns)
    num_rows = rows.shape[0]
    if scale is None:
        if kind == "fp4":
            raise InvalidArgumentError(
                f"{function}: q[1] is None but q[0] is packed FP4, which needs scales. Modes: {_MODES}."
            )
        return Queries(Operand(rows, kind, num_rows, head_dim, True), tuple(leading), num_heads, ScaleFormat.FP32)
    words, scale_format = _query_scales(function, scale, data, head_dim)
    scales = Scales(words, scale_format, 1, 32, num_rows, head_dim)
    return Queries(Operand(rows, kind, num_rows, head_dim, True, scales), tuple(leading), num_heads, scale_format)


def _query_scales(function: str, scale: object, data: Tensor, head_dim: int) -> tuple[Tensor, ScaleFormat]:
    scale = validate.require_tensor(function, "q[1]", scale)
    if scale.dtype not in (torch.int32, torch.int16):
        raise InvalidArgumentError(
            f"{function}: q[1] has dtype {scale.dtype}, expected None, int32 or int16. Modes: {_MODES}."
        )
    is_wide = scale.dtype is torch.int32
    scale_format = ScaleFormat.UE8M0X4_INT32 if is_wide else ScaleFormat.UE8M0X2_INT16
    if not is_wide and head_dim % 64:
        raise InvalidArgumentError(f"{function}: head_dim is {head_dim}, expected a multiple of 64 with int16 scales.")
    expected = data.shape[:-1] if is_wide else (*data.shape[:-1], head_dim // 64)
    validate.require_shape(
        function, "q[1]", scale, expected, f"one {'word' if is_wide else 'row of words'} per query head"
    )
    validate.require_contiguous(function, "q[1]", scale)
    validate.require_same_device(function, data, **{"q[1]": scale})
    return scale.reshape(-1, 1 if is_wide else head_dim // 64), scale_format


def keys(function: str, kv: object, q: Queries) -> Operand:
    """Check kv = (data [num_keys, dim], scales) against the kind and mode of the queries."""
    data, scale = validate.pair(function, "kv", kv)
    kind = quantised_kind(function, "kv[0]", data.dtype)
    if kind != q.operand.kind:
        raise InvalidArgumentError(f"{function}: kv[0] is {kind} but q[0] is {q.operand.kind}. Quantise both alike.")
    columns = q.operand.data.shape[1]
    if data.ndim != 2 or data.shape[1] != columns:
        raise InvalidArgumentError(
            f"{function}: kv[0] has shape {validate.shape_of(data)}, expected (num_keys, {columns}): head_dim {q.head_dim}."
        )
    validate.require_contiguous(function, "kv[0]", data)
    _require_key_mode(function, "kv[1]", scale.dtype, q)
    num_keys, words = data.shape[0], _words_per_key(q)
    if scale.shape != (num_keys,) or q.scale_format is ScaleFormat.UE8M0X2_INT16:
        validate.require_shape(function, "kv[1]", scale, (num_keys, words), "one scale (row) per key")
    validate.require_contiguous(function, "kv[1]", scale)
    validate.require_same_device(function, q.operand.data, **{"kv[0]": data, "kv[1]": scale})
    return key_operand(_payload(data, kind), kind, scale.reshape(num_keys, words), q.scale_format)


def _words_per_key(q: Queries) -> int:
    return q.head_dim // 64 if q.scale_format is ScaleFormat.UE8M0X2_INT16 else 1


def _require_key_mode(function: str, name: str, dtype: torch.dtype, q: Queries) -> None:
    if dtype is not q.scale_format.dtype:
        given = "None" if q.operand.scales is None else str(q.scale_format.dtype)
        raise InvalidArgumentError(
            f"{function}: {name} has dtype {dtype}, expected {q.scale_format.dtype} because q scales are {given}. "
            f"Modes: {_MODES}."
        )


def key_cache(function: str, kv_cache: object, q: Queries, pitch_multiple: int = 4) -> PagedKeys:
    """Check the fused cache: uint8 [pages, page_kv, 1, data + scale bytes], dense pages at a free pitch."""
    cache = validate.require_tensor(function, "kv_cache", kv_cache)
    validate.require_dtype(function, "kv_cache", cache, torch.uint8)
    data_bytes = q.operand.data.shape[1]
    scale_bytes = _words_per_key(q) * q.scale_format.dtype.itemsize
    row = data_bytes + scale_bytes
    if cache.ndim != 4 or cache.shape[2:] != (1, row):
        raise InvalidArgumentError(
            f"{function}: kv_cache has shape {validate.shape_of(cache)}, expected (pages, page_kv, 1, {row}): {data_bytes} data "
            f"and {scale_bytes} scale bytes per key of head_dim {q.head_dim} ({q.operand.kind}, {q.scale_format.label} scales)."
        )
    if cache.shape[1] not in PAGE_SIZES:
        raise InvalidArgumentError(
            f"{function}: kv_cache has pages of {cache.shape[1]} keys, expected {', '.join(map(str, PAGE_SIZES))}."
        )
    pitch, key_pitch, _, unit = cache.stride()
    if cache.shape[0] and (key_pitch != row or unit != 1):
        raise InvalidArgumentError(
            f"{function}: kv_cache has strides {cache.stride()}, expected ({{pitch}}, {row}, {{any}}, 1): the bytes of a page are "
            f"dense, all data before all scales. Only the first stride is free."
        )
    if cache.shape[0] > 1 and pitch % pitch_multiple:
        raise InvalidArgumentError(
            f"{function}: kv_cache has a page pitch of {pitch} bytes, expected a multiple of {pitch_multiple}."
        )
    validate.require_same_device(function, q.operand.data, kv_cache=cache)
    return PagedKeys(cache, q.operand.kind, q.head_dim, q.scale_format)


def weights(
    function: str, value: object, q: Queries, num_rows: int, dtypes: tuple[torch.dtype, ...] = _FLOAT_DTYPES
) -> Tensor:
    """Check head weights [rows, heads]: unit stride along heads, rows at multiples of 16 bytes."""
    tensor = validate.require_tensor(function, "weights", value)
    validate.require_dtype(function, "weights", tensor, *dtypes)
    validate.require_shape(function, "weights", tensor, (num_rows, q.num_heads), "(query tokens, heads)")
    row_stride, unit = tensor.stride()
    if tensor.numel() and unit != 1:
        raise InvalidArgumentError(
            f"{function}: weights has strides {tensor.stride()}, expected a unit stride along heads. Pass weights.contiguous()."
        )
    if num_rows > 1 and row_stride * tensor.element_size() % 16:
        multiple = 16 // tensor.element_size()
        raise InvalidArgumentError(
            f"{function}: weights has rows {row_stride * tensor.element_size()} bytes apart, expected a multiple of 16 bytes. "
            f"Allocate rows of a multiple of {multiple} {tensor.dtype} and pass [:, :{q.num_heads}] of them."
        )
    validate.require_same_device(function, q.operand.data, weights=tensor)
    return tensor


def lengths(function: str, name: str, value: object, shape: tuple[int, ...], why: str) -> Tensor:
    """Check int32 lengths or positions; a strided view is copied, so every backend reads contiguous ones."""
    tensor = validate.require_tensor(function, name, value)
    if tensor.dtype is not torch.int32:
        raise InvalidArgumentError(
            f"{function}: {name} has dtype {tensor.dtype}, expected int32. Pass {name}.to(torch.int32)."
        )
    validate.require_shape(function, name, tensor, shape, why)
    return tensor.contiguous()


def context_lens(function: str, value: object, batch: int | None = None, next_n: int | None = None) -> Tensor:
    """Check int32 context lengths [batch, next_n]; [batch] counts as [batch, 1]."""
    tensor = validate.require_tensor(function, "context_lens", value)
    if tensor.ndim == 1 and next_n in (None, 1):
        tensor = tensor.unsqueeze(1)
    if batch is None or next_n is None:
        if tensor.ndim != 2:
            raise InvalidArgumentError(
                f"{function}: context_lens has shape {validate.shape_of(tensor)}, expected (batch, next_n) or (batch,)."
            )
        batch, next_n = tensor.shape
    why = "(batch, next_n), the keys each token sees"
    if tensor.ndim == 1:
        why += "; give every token of a batch row its own length"
    return lengths(function, "context_lens", tensor, (batch, next_n), why)


def block_table(function: str, value: object, batch: int, neighbour: Tensor) -> Tensor:
    """Check the page table: int32 [batch, width], unit stride along width, on the device of `neighbour`."""
    table = validate.require_tensor(function, "block_table", value)
    validate.require_dtype(function, "block_table", table, torch.int32)
    if table.ndim != 2 or table.shape[0] != batch:
        raise InvalidArgumentError(
            f"{function}: block_table has shape {validate.shape_of(table)}, expected ({batch}, pages per sequence): one row per "
            f"row of q."
        )
    if table.shape[1] > 1 and table.stride(1) != 1:
        raise InvalidArgumentError(
            f"{function}: block_table has strides {table.stride()}, expected a unit stride in the last dimension. "
            f"Pass block_table.contiguous()."
        )
    validate.require_same_device(function, neighbour, block_table=table)
    return table


def request_indices(function: str, value: object, batch: int, next_n: int) -> Tensor | None:
    """Check the request id of each row (varlen batches): int32 [batch], one token per row."""
    if value is None:
        return None
    if next_n != 1:
        raise InvalidArgumentError(
            f"{function}: indices given with next_n={next_n}, expected next_n=1: in a varlen batch every token is its own row."
        )
    return lengths(function, "indices", value, (batch,), "the request id of each row")


def logits_dtype(function: str, value: object, weights: Tensor) -> torch.dtype:
    """Return the dtype asked for, by default float32 unless the weights are bfloat16."""
    if value is None:
        return weights.dtype
    if value not in _FLOAT_DTYPES:
        raise InvalidArgumentError(f"{function}: logits_dtype is {value!r}, expected torch.float32 or torch.bfloat16.")
    assert isinstance(value, torch.dtype)
    return value


def empty_logits(num_rows: int, num_columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate logits whose rows start at multiples of `ROW_ALIGNMENT_BYTES`; the result is a view of the padded tensor."""
    per_row = ROW_ALIGNMENT_BYTES // dtype.itemsize
    pitch = -(-num_columns // per_row) * per_row
    return torch.empty((num_rows, pitch), dtype=dtype, device=device)[:, :num_columns]
