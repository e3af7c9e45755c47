"""Checks of Mega MoE weights: raw ones on their way to the transformation, transformed ones on their way to a call.

Sizes of a layer are checked in mega_moe/sizes.py; everything else in validate.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import validate
from ._registry import backend_for
from .errors import ArgumentTypeError, InvalidArgumentError
from .mega_moe.layout import GRAN_K
from .mega_moe.weights import Layer, MegaMoeWeights, TransformMegaMoeWeightsProblem
from .operations.operands import Kind, Operand

if TYPE_CHECKING:
    from .backend import Backend
    from .mega_moe.symmetric_buffer import SymmBuffer

_SIZE_MULTIPLE = 128
_PACKED_DTYPES = {torch.int32: 4, torch.int16: 2}
_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "bf16": (torch.bfloat16,),
    "fp8": (torch.float8_e4m3fn,),
    "fp4": tuple(getattr(torch, name) for name in ("int8", "uint8", "float4_e2m1fn_x2") if hasattr(torch, name)),
}
_HOW_TO_PACK = "Pack them with transform_sf_into_required_layout(sf, n, k, (1, 32), num_groups)."


def raw_weights(function: str, l1: object, l2: object) -> TransformMegaMoeWeightsProblem:
    """Check raw weights and that both layers fit each other."""
    first, second = _raw(function, "l1_weights", l1), _raw(function, "l2_weights", l2)
    shapes = f"l1_weights is {_logical(first)}, l2_weights {_logical(second)} (FP4 data holds two columns a byte)"
    if first.kind != second.kind:
        raise InvalidArgumentError(
            f"{function}: l1_weights holds {first.kind}, l2_weights {second.kind}, expected the same."
        )
    if first.data.shape[:-2] != second.data.shape[:-2]:
        raise InvalidArgumentError(f"{function}: {shapes}, expected equally many experts in both.")
    if first.k % _SIZE_MULTIPLE or first.mn % (2 * _SIZE_MULTIPLE):
        raise InvalidArgumentError(
            f"{function}: l1_weights is {_logical(first)}, expected [experts, 2 * intermediate, hidden] with both sizes "
            f"multiples of {_SIZE_MULTIPLE}: gate rows first, then as many up rows."
        )
    if (second.mn, second.k) != (first.k, first.mn // 2):
        raise InvalidArgumentError(
            f"{function}: {shapes}, expected [experts, 2 * intermediate, hidden] and [experts, hidden, intermediate]."
        )
    validate.require_same_device(function, first.data, l2_weights=second.data)
    return TransformMegaMoeWeightsProblem(first, second)


def _logical(operand: Operand) -> str:
    return str([*operand.data.shape[:-2], operand.mn, operand.k])


def _raw(function: str, name: str, value: object) -> Operand:
    is_pair = not isinstance(value, Tensor)
    data, scales = validate.pair(function, name, value) if is_pair else (value, None)
    assert isinstance(data, Tensor)
    if data.ndim not in (2, 3):
        hint = " It looks transformed already: transform raw weights once." if data.ndim == 4 else ""
        raise InvalidArgumentError(
            f"{function}: {name} has data of shape {validate.shape_of(data)}, expected [experts, rows, columns], or [rows, "
            f"columns] for shared experts.{hint}"
        )
    if not is_pair and data.dtype is not torch.bfloat16:
        raise InvalidArgumentError(
            f"{function}: {name} is a tensor of dtype {data.dtype}, expected bfloat16, or a pair (data, scales) for FP8 and FP4."
        )
    operand = validate.matrix(function, name, data, ndim=data.ndim, kinds=("fp8", "fp4") if is_pair else ("bf16",))
    if not operand.is_k_major:
        raise InvalidArgumentError(
            f"{function}: {name} has strides {data.stride()}, expected a unit stride in the last dimension."
        )
    if scales is None:
        return operand
    if scales.dtype not in _PACKED_DTYPES:
        raise InvalidArgumentError(
            f"{function}: {name}[1] has dtype {scales.dtype}, expected packed UE8M0 scales (int32 or int16) with one scale "
            f"per row and {GRAN_K} columns. {_HOW_TO_PACK}"
        )
    validate.require_same_device(function, data, **{f"{name}_scales": scales})
    num_groups = data.shape[0] if data.ndim == 3 else None
    return validate.with_scales(function, f"{name}[1]", operand, scales, 1, GRAN_K, num_groups, "fixed")


def require_same_experts(function: str, names: Sequence[str], values: Sequence[object], num_shared: int) -> None:
    """Shared weights come both or not at all, exactly when the buffer has shared experts."""
    given = [name for name, value in zip(names, values, strict=True) if value is not None]
    for name, value in zip(names, values, strict=True):
        if isinstance(value, Tensor) and value.dtype is torch.int32:
            raise ArgumentTypeError(
                f"{function}: {name} is an int32 tensor, expected weights. In DeepGEMM 2.6.1 the statistics stood at this "
                f"position: pass cumulative_local_expert_recv_stats by keyword."
            )
    if len(given) == 1:
        missing = next(name for name in names if name not in given)
        raise InvalidArgumentError(f"{function}: {given[0]} is given without {missing}. Give both, or neither.")
    if bool(given) != bool(num_shared):
        if given:
            raise InvalidArgumentError(
                f"{function}: {' and '.join(given)} are given, but sym_buffer has num_shared_experts=0. Construct it with the "
                f"number of shared experts."
            )
        raise InvalidArgumentError(
            f"{function}: sym_buffer has num_shared_experts={num_shared}, but {' and '.join(names)} are missing. Pass both, or "
            f"construct the buffer without shared experts."
        )


def transformed_pair(
    function: str,
    names: Sequence[str],
    values: Sequence[object],
    kind: Kind,
    leading: tuple[int, ...],
    width: int,
    buffer: SymmBuffer,
) -> tuple[MegaMoeWeights, MegaMoeWeights]:
    """Check transformed weights of both layers against a buffer; `width` is I, or Is for shared experts."""
    backend = backend_for(buffer.buffer)
    first = _transformed(function, names[0], values[0], "l1", kind, leading, (2 * width, buffer.hidden), backend)
    second = _transformed(function, names[1], values[1], "l2", kind, leading, (buffer.hidden, width), backend)
    for name, weights in zip(names, (first, second), strict=True):
        validate.require_same_device(function, buffer.buffer, **{name: weights.data, f"{name}_scales": weights.scales})
    return first, second


def _transformed(
    function: str,
    name: str,
    value: object,
    layer: Layer,
    kind: Kind,
    leading: tuple[int, ...],
    sizes: tuple[int, int],
    backend: Backend,
) -> MegaMoeWeights:
    num_rows, num_columns = sizes
    data_width = num_columns // 2 if kind == "fp4" else num_columns
    if kind == "bf16":
        data = validate.require_tensor(function, name, value)
        _check_form(function, name, data, _DTYPES[kind], (*leading, num_rows, data_width), layer, backend)
        return MegaMoeWeights(data, None, kind, num_rows, num_columns)
    data, scales = validate.pair(function, name, value)
    _check_form(function, f"{name}[0]", data, _DTYPES[kind], (*leading, num_rows, data_width), layer, backend)
    words = num_columns // (GRAN_K * _PACKED_DTYPES.get(scales.dtype, 4))
    _check_form(function, f"{name}[1]", scales, tuple(_PACKED_DTYPES), (*leading, num_rows, words), layer, backend)
    if kind == "fp4":
        data = data.view(torch.int8)
    return MegaMoeWeights(data, scales, kind, num_rows, num_columns)


def _check_form(
    function: str,
    name: str,
    tensor: Tensor,
    dtypes: tuple[torch.dtype, ...],
    raw_shape: tuple[int, ...],
    layer: Layer,
    backend: Backend,
) -> None:
    """Refuse a tensor that is not the transformed form of `raw_shape`, saying what it looks like instead."""
    expected = backend.mega_moe_weight_shape(layer, raw_shape[:-2], raw_shape[-2], raw_shape[-1])
    if tensor.shape == expected and tensor.dtype in dtypes:
        if tensor.stride(-1) != 1 and name.endswith("[0]"):
            raise InvalidArgumentError(
                f"{function}: {name} has strides {tensor.stride()}, expected a unit stride in the end."
            )
        return
    looks = "these look untransformed" if tensor.ndim == len(raw_shape) else "these belong to another shape or backend"
    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    raise InvalidArgumentError(
        f"{function}: {name} has shape {validate.shape_of(tensor)} and dtype {tensor.dtype}, expected {expected} and {names}: "
        f"{looks}. Weights have to go through transform_weights_for_mega_moe(l1_weights, l2_weights) first, under backend "
        f"'{backend.name}', raw ones being {raw_shape} for this sym_buffer. Scales must be packed: {_HOW_TO_PACK}"
    )
