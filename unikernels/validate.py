"""Argument checks, and the only place that words an argument error.

Every check runs once, in front of every backend, before anything is written. A message says what was given, what was
expected and why, and what to do. Checks read shapes, dtypes and strides only; they never read tensor contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from . import _registry
from .epilogue import Alpha, BF16StochasticRounding, Epilogue, FP8CastWithClamp, Identity, real_number
from .errors import ArgumentTypeError, InvalidArgumentError
from .operations.operands import Kind, Operand
from .scale_layouts import normalize_scales
from .scale_layouts.checks import RecipeForm

_KINDS: dict[torch.dtype, Kind] = {
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8",
    torch.int8: "fp4",
    torch.uint8: "fp4",
}
if hasattr(torch, "float4_e2m1fn_x2"):
    _KINDS[torch.float4_e2m1fn_x2] = "fp4"

_QUANTISED_DTYPES = "float8_e4m3fn, or packed FP4 as int8, uint8 or float4_e2m1fn_x2"
_OUTPUT_DTYPES = (torch.bfloat16, torch.float32)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return a shape as a plain tuple (prints without ``torch.Size``)."""
    return tuple(tensor.shape)


def require_tensor(function: str, name: str, value: object) -> Tensor:
    """Refuse anything but a tensor."""
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"{function}: {name} is a {type(value).__name__}, expected a torch.Tensor.")
    return value


def require_dtype(function: str, name: str, tensor: Tensor, *allowed: torch.dtype) -> None:
    """Refuse a dtype outside `allowed`."""
    if tensor.dtype not in allowed:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise InvalidArgumentError(f"{function}: {name} has dtype {tensor.dtype}, expected {names}.")


def require_shape(function: str, name: str, tensor: Tensor, expected: Sequence[int], why: str = "") -> None:
    """Refuse a shape other than `expected`; `why` explains it, for example ``(m, n)``."""
    if tensor.shape != tuple(expected):
        reason = f": {why}" if why else ""
        raise InvalidArgumentError(
            f"{function}: {name} has shape {shape_of(tensor)}, expected {tuple(expected)}{reason}."
        )


def require_contiguous(function: str, name: str, tensor: Tensor) -> None:
    """Refuse a tensor that is not contiguous."""
    if not tensor.is_contiguous():
        raise InvalidArgumentError(
            f"{function}: {name} has strides {tensor.stride()}, expected a contiguous tensor of shape "
            f"{shape_of(tensor)}. Pass {name}.contiguous()."
        )


def require_same_device(function: str, first: Tensor, **others: Tensor | None) -> None:
    """Refuse tensors on another device than `first`."""
    device = first.device
    for name, tensor in others.items():
        if tensor is not None and tensor.device != device:
            raise InvalidArgumentError(
                f"{function}: {name} is on {tensor.device}, the other tensors are on {device}. Move it there."
            )


def pair(function: str, name: str, value: object) -> tuple[Tensor, Tensor]:
    """Take a quantised operand apart: a (data, scales) tuple or list."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        data, scales = value
        if isinstance(data, Tensor) and isinstance(scales, Tensor):
            return data, scales
    else:
        given = f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
        raise ArgumentTypeError(
            f"{function}: {name} is {given}, expected a pair (data, scales): {_QUANTISED_DTYPES}, and its scale factors."
        )
    return require_tensor(function, f"{name}[0]", data), require_tensor(function, f"{name}[1]", scales)


def transposed_pair(function: str, name: str, value: object) -> tuple[Tensor, Tensor]:
    """Take a pair whose data and scales are both passed with their last two dimensions exchanged."""
    data, scales = pair(function, name, value)
    if data.ndim < 2 or scales.ndim < 2:
        raise InvalidArgumentError(
            f"{function}: {name} has data of shape {shape_of(data)} and scales of shape {shape_of(scales)}, expected at "
            f"least two dimensions each."
        )
    return data.transpose(-1, -2), scales.transpose(-1, -2)


def matrix(function: str, name: str, data: Tensor, *, ndim: int, kinds: Sequence[Kind]) -> Operand:
    """Read one matrix operand [.., mn, k]: element kind, majorness, logical sizes. Scales are added later."""
    kind = _KINDS.get(data.dtype)
    if kind is None or kind not in kinds:
        expected = {
            ("bf16",): "bfloat16",
            ("fp8", "fp4"): _QUANTISED_DTYPES,
        }.get(tuple(kinds), " or ".join(kinds))
        raise InvalidArgumentError(f"{function}: {name} has dtype {data.dtype}, expected {expected}.")
    shape = data.shape
    if len(shape) != ndim:
        raise InvalidArgumentError(
            f"{function}: {name} has {len(shape)} dimensions (shape {tuple(shape)}), expected {ndim}."
        )
    rows, columns = shape if ndim == 2 else shape[-2:]
    row_stride, column_stride = data.stride() if ndim == 2 else data.stride()[-2:]
    if column_stride == 1 or (columns <= 1 and row_stride != 1):
        is_k_major = True
    elif row_stride == 1 or rows <= 1:
        is_k_major = rows <= 1 and row_stride != 1
    else:
        raise InvalidArgumentError(
            f"{function}: {name} has strides {data.stride()}, expected a unit stride in one of the last two dimensions. "
            f"Pass {name}.contiguous()."
        )
    if kind == "fp4":
        if data.dtype is not torch.int8:
            data = data.view(torch.int8)
        if is_k_major:
            columns *= 2
        else:
            rows *= 2
    return Operand(data, kind, rows, columns, is_k_major)


def with_scales(
    function: str,
    name: str,
    operand: Operand,
    scales: Tensor,
    gran_mn: int,
    gran_k: int,
    num_groups: int | None = None,
    recipe_form: RecipeForm = "per_operand",
) -> Operand:
    """Attach a checked scale tensor to an operand."""
    checked = normalize_scales(
        scales,
        mn=operand.mn,
        k=operand.k,
        gran_mn=gran_mn,
        gran_k=gran_k,
        num_groups=num_groups,
        name=name,
        function=function,
        recipe_form=recipe_form,
        pack=_words_of_scale_bytes,
    )
    return Operand(operand.data, operand.kind, operand.mn, operand.k, operand.is_k_major, checked)


def _words_of_scale_bytes(exponents: Tensor) -> Tensor:
    return _registry.backend_of(exponents).words_of_scale_bytes(exponents)


def require_equal_k(function: str, a: Operand, b: Operand) -> None:
    """Refuse operands that disagree on K."""
    if a.k != b.k:
        raise InvalidArgumentError(
            f"{function}: a has k={a.k} (data {shape_of(a.data)} {a.kind}) but b has k={b.k} "
            f"(data {shape_of(b.data)} {b.kind}). Both must agree; FP4 data holds two elements a byte."
        )


def output(
    function: str,
    name: str,
    tensor: object,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype] = _OUTPUT_DTYPES,
    why: str = "(m, n)",
) -> Tensor:
    """Check a preallocated row-major output: shape, dtype, unit last stride, no two elements in one place."""
    d = require_tensor(function, name, tensor)
    if d.dtype not in dtypes:
        require_dtype(function, name, d, *dtypes)
    require_shape(function, name, d, shape, why)
    if d.is_contiguous():
        return d
    strides = d.stride()
    if strides[-1] != 1 and d.shape[-1] > 1:
        raise InvalidArgumentError(
            f"{function}: {name} has strides {strides}, expected a unit stride in the last dimension (row-major)."
        )
    _refuse_overlapping_rows(function, name, d)
    return d


def _refuse_overlapping_rows(function: str, name: str, d: Tensor) -> None:
    """An expanded or overlapping output would be written several times."""
    extent = 1
    for stride, size in sorted(zip(d.stride(), d.shape, strict=True)):
        if size > 1:
            if stride < extent:
                raise InvalidArgumentError(
                    f"{function}: {name} has shape {shape_of(d)} and strides {d.stride()}: its elements overlap in memory. "
                    f"Pass a tensor that owns its elements."
                )
            extent = stride * size if stride * size > extent else extent


def addend(function: str, c: object, d: Tensor) -> Tensor | None:
    """Check the optional addend: d's shape and dtype; either d itself or memory apart from it."""
    if c is None:
        return None
    c = require_tensor(function, "c", c)
    require_dtype(function, "c", c, d.dtype)
    require_shape(function, "c", c, d.shape, "the shape of d")
    if c is d:
        return d
    if c.device != d.device:
        require_same_device(function, d, c=c)
    if c.data_ptr() == d.data_ptr() and c.numel():
        if c.stride() != d.stride():
            raise InvalidArgumentError(
                f"{function}: c starts where d does but has strides {c.stride()} against {d.stride()}. "
                f"Pass d itself as c to accumulate in place, or a separate tensor."
            )
        return d
    if c.stride(-1) != 1 and c.shape[-1] > 1:
        raise InvalidArgumentError(
            f"{function}: c has strides {c.stride()}, expected a unit stride in the last dimension."
        )
    refuse_overlap(function, "d", d, c=c)
    return c


def refuse_overlap(function: str, name: str, written: Tensor, **read: Tensor | None) -> None:
    """Refuse an output that shares memory with an input."""
    start = written.data_ptr()
    if written.is_meta or not written.numel():
        return
    stop = start + _extent_bytes(written)
    for other, tensor in read.items():
        if tensor is None or not tensor.numel():
            continue
        first = tensor.data_ptr()
        if first < stop and start < first + _extent_bytes(tensor):
            raise InvalidArgumentError(
                f"{function}: {name} shares memory with {other}. An output must not overlap an input; pass a copy of one."
            )


def _extent_bytes(tensor: Tensor) -> int:
    last = 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * stride
    return (last + 1) * tensor.element_size()


def recipes(function: str, recipe: object, recipe_a: object, recipe_b: object) -> tuple[int, int, int, int] | None:
    """Return (gran_m, gran_k of a, gran_n, gran_k of b) as given; None where `default_recipe` decides."""
    if recipe is not None:
        if recipe_a is not None or recipe_b is not None:
            raise InvalidArgumentError(f"{function}: give either recipe or recipe_a and recipe_b, not both.")
        gran_m, gran_n, gran_k = _granularities(function, "recipe", recipe, 3)
        return gran_m, gran_k, gran_n, gran_k
    if recipe_a is None and recipe_b is None:
        return None
    if recipe_a is None or recipe_b is None:
        missing = "recipe_a" if recipe_a is None else "recipe_b"
        raise InvalidArgumentError(f"{function}: {missing} is missing; recipe_a and recipe_b go together.")
    gran_m, gran_k_a = _granularities(function, "recipe_a", recipe_a, 2)
    gran_n, gran_k_b = _granularities(function, "recipe_b", recipe_b, 2)
    return gran_m, gran_k_a, gran_n, gran_k_b


def default_recipe(sfb: Tensor) -> tuple[int, int, int, int]:
    """Return (gran_m, gran_k of a, gran_n, gran_k of b) where a call gives no recipe: the backend's default."""
    backend = _registry.backend_of(sfb)
    gran_m, gran_n, gran_k = backend.default_recipe(sfb.dtype)
    return gran_m, gran_k, gran_n, gran_k


def _granularities(function: str, name: str, value: object, length: int) -> tuple[int, ...]:
    if (
        not isinstance(value, (tuple, list))
        or len(value) != length
        or not all(type(x) is int or (isinstance(x, Integral) and not isinstance(x, bool)) for x in value)
    ):
        form = "(gran_m, gran_n, gran_k)" if length == 3 else "(gran_mn, gran_k)"
        raise InvalidArgumentError(f"{function}: {name} is {value!r}, expected {length} integers {form}.")
    *rows, gran_k = granularities = tuple(map(int, value))
    if gran_k not in (32, 128) or any(not 0 < gran < 1 << 31 for gran in rows):
        raise InvalidArgumentError(
            f"{function}: {name} is {granularities}, expected row granularities from 1 to 2^31 - 1 and 32 or 128 along K."
        )
    return granularities


def refuse_ue8m0_cast(function: str, disable_ue8m0_cast: object, tensors: Sequence[Tensor]) -> None:
    """`disable_ue8m0_cast` forbids a backend with exponent scales to take float32 scales."""
    if disable_ue8m0_cast is False:
        return
    if not isinstance(disable_ue8m0_cast, bool):
        raise ArgumentTypeError(f"{function}: disable_ue8m0_cast is {disable_ue8m0_cast!r}, expected a bool.")
    if all(tensor.dtype is not torch.float32 for tensor in tensors):
        return
    backend = _registry.backend_for(tensors[0])
    if not backend.keeps_float32_scales:
        raise InvalidArgumentError(
            f"{function}: disable_ue8m0_cast=True with float32 scales, but backend '{backend.name}' multiplies by "
            f"{backend.scale_format.label} scales only. Pass packed scales, or allow the cast."
        )


def compiled_dims(function: str, value: object) -> None:
    """`compiled_dims` is a tuning hint: letters out of m, n, k."""
    if value == "nk" or value == "mn":
        return
    if not isinstance(value, str) or set(value) - set("mnk"):
        raise InvalidArgumentError(f"{function}: compiled_dims is {value!r}, expected a string of the letters m, n, k.")


def epilogue_and_alpha(
    function: str, alpha: object, epilogue: object, epilogue_class: object, sfd: Tensor | None = None
) -> tuple[float, Epilogue | None]:
    """Reduce alpha, epilogue and its other spelling to (factor, epilogue that is not plain)."""
    if alpha is None and epilogue is None and epilogue_class is None:
        return 1.0, None
    if epilogue_class is not None:
        if epilogue is not None:
            raise InvalidArgumentError(
                f"{function}: give epilogue or epilogue_class (two names of one argument), not both."
            )
        epilogue = epilogue_class
    if epilogue is not None and not isinstance(epilogue, Epilogue):
        raise ArgumentTypeError(
            f"{function}: epilogue is {epilogue!r}, expected an object such as Identity(), Alpha(0.5) or FP8CastWithClamp(sfd)."
        )
    if alpha is None:
        if isinstance(epilogue, Alpha):
            return epilogue.alpha, None
        return 1.0, None if isinstance(epilogue, Identity) else epilogue
    if epilogue is not None:
        raise InvalidArgumentError(
            f"{function}: give alpha or epilogue, not both. Alpha(...) is the epilogue for alpha."
        )
    return real_number(function, "alpha", alpha), None


def output_dtypes(epilogue: Epilogue | None) -> tuple[torch.dtype, ...]:
    """Return the dtypes an epilogue can store."""
    if epilogue is None:
        return _OUTPUT_DTYPES
    if isinstance(epilogue, FP8CastWithClamp):
        return (torch.float8_e4m3fn,)
    if isinstance(epilogue, BF16StochasticRounding):
        return (torch.bfloat16,)
    return _OUTPUT_DTYPES


def epilogue_outputs(
    function: str, epilogue: Epilogue | None, c: Any, m: int, num_columns: int, d: Tensor, **read: Tensor
) -> None:
    """Check what an epilogue writes besides d: scales [m, num_columns/32 bytes] and the clamp counter.

    Args:
        read: the operands and their scales, which must not be written.
    """
    if epilogue is None:
        return
    if c is not None:
        raise InvalidArgumentError(f"{function}: c is not supported together with {type(epilogue).__name__}.")
    if not isinstance(epilogue, FP8CastWithClamp):
        return
    sfd = require_tensor(function, "epilogue.sfd", epilogue.sfd)
    require_dtype(function, "epilogue.sfd", sfd, torch.int32, torch.int16)
    per_word = 32 * sfd.element_size()
    if num_columns % per_word:
        raise InvalidArgumentError(
            f"{function}: an FP8 output with {sfd.dtype} scales needs a multiple of {per_word} columns, got {num_columns}."
        )
    require_shape(
        function, "epilogue.sfd", sfd, (m, num_columns // per_word), "one word per row and packed scale group"
    )
    count = epilogue.clamped_count
    require_same_device(function, d, **{"epilogue.sfd": sfd, "epilogue.clamped_count": count})
    if m > 1 and sfd.stride(0) != 1:
        raise InvalidArgumentError(
            f"{function}: epilogue.sfd has strides {sfd.stride()}, expected (1, pitch): scales are MN-major. Create it as "
            f"torch.empty((words, rows), dtype=...).T"
        )
    if sfd.shape[1] > 1 and sfd.stride(1) < m:
        raise InvalidArgumentError(f"{function}: epilogue.sfd has pitch {sfd.stride(1)}, expected at least m={m}.")
    refuse_overlap(function, "epilogue.sfd", sfd, d=d, **read)
    if count is not None:
        require_dtype(function, "epilogue.clamped_count", count, torch.uint32)
        if count.numel() != 1:
            raise InvalidArgumentError(f"{function}: epilogue.clamped_count has {count.numel()} elements, expected 1.")
        refuse_overlap(function, "epilogue.clamped_count", count, d=d, **{"epilogue.sfd": sfd}, **read)
