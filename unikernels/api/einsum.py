"""Batched contractions written as einsum expressions, in bfloat16 and block-scaled FP8.

Each is a batch of nt GEMMs on permuted views. Contract: DeepGEMM 2.8.2, section "Einsum".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import validate
from .._registry import bound
from ..epilogue import Epilogue, FP8CastWithClamp
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..operations.batched import BatchedGemmProblem
from ..operations.operands import Kind, Operand
from ..scale_layouts.checks import RecipeForm
from ..validate_plain import boolean
from .gemm import Pair, write_empty_product

Order = tuple[int, int, int]

#: Default of `fp8_einsum`. Compared by identity: left out, it follows the scales' dtype and the backend.
_FP8_RECIPE = (1, 128, 128)
_REDUCTION = "bmk,bnk->mn"


@dataclass(frozen=True, slots=True)
class _Form:
    """How the dimensions of each tensor become (batch, m or n, k), and those of d (batch, m, n)."""

    a: Order
    b: Order
    d: Order
    #: Rows of d are tokens, so that an FP8 output with one scale row per token makes sense.
    allows_fp8_output: bool = False


_FORMS = {
    "bhr,hdr->bhd": _Form((1, 0, 2), (0, 1, 2), (1, 0, 2), True),
    "bhd,hdr->bhr": _Form((1, 0, 2), (0, 2, 1), (1, 0, 2)),
    "bhd,bhr->hdr": _Form((1, 2, 0), (1, 2, 0), (0, 1, 2)),
}


def _form(function: str, expr: object, others: tuple[str, ...] = ()) -> _Form:
    form = _FORMS.get(expr) if isinstance(expr, str) else None
    if form is None:
        known = ", ".join(repr(one) for one in (*others, *_FORMS))
        raise InvalidArgumentError(f"{function}: expr is {expr!r}, expected exactly one of {known} (no spaces).")
    return form


def _operand(function: str, name: str, value: object, dtype: torch.dtype, order: Order) -> Operand:
    """Read a [.., .., contiguous] tensor as the operand [batch, mn, k] its dimensions form in `order`."""
    data = validate.require_tensor(function, name, value)
    validate.require_dtype(function, name, data, dtype)
    if data.ndim != 3:
        raise InvalidArgumentError(
            f"{function}: {name} has {data.ndim} dimensions (shape {validate.shape_of(data)}), expected 3."
        )
    if data.stride(2) != 1 and data.shape[2] > 1:
        raise InvalidArgumentError(
            f"{function}: {name} has strides {data.stride()}, expected a unit stride in the last dimension. Pass "
            f"{name}.contiguous()."
        )
    data = data.permute(order)
    kind: Kind = "bf16" if dtype is torch.bfloat16 else "fp8"
    return Operand(data, kind, data.shape[1], data.shape[2], order[2] == 2)


def _require_equal(function: str, expr: str, a: Operand, b: Operand) -> None:
    if a.data.shape[0] != b.data.shape[0] or a.k != b.k:
        raise InvalidArgumentError(
            f"{function}: a and b disagree on a dimension that {expr!r} shares: batch {a.data.shape[0]} and "
            f"{b.data.shape[0]}, summed dimension {a.k} and {b.k}."
        )


def _unpermuted(order: Order, sizes: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the shape whose dimensions, taken in `order`, have the given sizes."""
    shape = [0, 0, 0]
    for dimension, size in zip(order, sizes, strict=True):
        shape[dimension] = size
    return tuple(shape)


def _run(
    function: str,
    expr: str,
    form: _Form,
    a: Operand,
    b: Operand,
    d: object,
    c: object,
    alpha: float,
    store: Epilogue | None,
    uses_vendor_library: bool = False,
    recipe: object = None,
    **scale_tensors: Tensor,
) -> None:
    """Check d and c, treat empty problems, attach scales, call the backend."""
    _require_equal(function, expr, a, b)
    batch, m, n = a.data.shape[0], a.mn, b.mn
    if isinstance(store, FP8CastWithClamp) and not form.allows_fp8_output:
        raise InvalidArgumentError(f"{function}: an FP8 output is offered for 'bhr,hdr->bhd' only, not for {expr!r}.")
    shape = _unpermuted(form.d, (batch, m, n))
    output = validate.output(function, "d", d, shape, validate.output_dtypes(store), f"the result of {expr}")
    addend = validate.addend(function, c, output)
    validate.require_same_device(function, output, a=a.data, b=b.data, **scale_tensors)
    if store is not None:
        validate.epilogue_outputs(function, store, addend, m, batch * n, output, a=a.data, b=b.data, **scale_tensors)
        if isinstance(store, FP8CastWithClamp) and n % (32 * store.sfd.element_size()):
            raise InvalidArgumentError(
                f"{function}: d has {n} columns per head, expected a multiple of {32 * store.sfd.element_size()}: a word of "
                f"{store.sfd.dtype} scales belongs to one head."
            )
    if output.numel() == 0:
        return
    validate.refuse_overlap(function, "d", output, a=a.data, b=b.data, **scale_tensors)
    if a.k == 0:
        write_empty_product(output, addend, store)
        return
    if scale_tensors:
        a, b = _with_scales(function, expr, form, a, b, recipe, **scale_tensors)
    view = output.permute(form.d)
    other = view if addend is output else None if addend is None else addend.permute(form.d)
    bound("batched_gemm", output)(
        BatchedGemmProblem(a, b, view, other, alpha, store, uses_vendor_library=uses_vendor_library)
    )


def _with_scales(
    function: str, expr: str, form: _Form, a: Operand, b: Operand, recipe: object, sfa: Tensor, sfb: Tensor
) -> tuple[Operand, Operand]:
    granularities = None if recipe is _FP8_RECIPE else validate.recipes(function, recipe, None, None)
    gran_m, gran_k_a, gran_n, gran_k_b = granularities or validate.default_recipe(sfb)
    if expr == "bhd,bhr->hdr" and (gran_m, gran_n) != (1, 1):
        raise InvalidArgumentError(
            f"{function}: {expr!r} needs one scale per row of a and b, got granularities ({gran_m}, {gran_n}). Pass "
            f"recipe=(1, 1, {gran_k_a}) and scales quantised along b."
        )
    for name, scales in (("sfa", sfa), ("sfb", sfb)):
        if scales.ndim != 3:
            raise InvalidArgumentError(
                f"{function}: {name} has shape {validate.shape_of(scales)}, expected three dimensions in the order of the data."
            )
    batch = a.data.shape[0]
    form_of_recipe: RecipeForm = "along_k" if expr == "bhd,bhr->hdr" else "joint"
    return (
        validate.with_scales(function, "sfa", a, sfa.permute(form.a), gran_m, gran_k_a, batch, form_of_recipe),
        validate.with_scales(function, "sfb", b, sfb.permute(form.b), gran_n, gran_k_b, batch, form_of_recipe),
    )


def einsum(
    expr: str,
    a: Tensor,
    b: Tensor,
    d: Tensor,
    c: Tensor | None = None,
    epilogue: Epilogue | None = None,
    *,
    use_cublaslt: bool = False,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + the contraction `expr` of bfloat16 tensors, accumulating in float32.

    Args:
        expr: exactly one of

            * ``"bmk,bnk->mn"``: d[m, n] = c + sum over b and k; all contiguous. A float32 d needs c to be d (it is added
              to); a bfloat16 d takes no c.
            * ``"bhr,hdr->bhd"``, ``"bhd,hdr->bhr"``: one GEMM per head h.
            * ``"bhd,bhr->hdr"``: one GEMM per head, summed over b.
        a, b: bfloat16, unit stride in the last dimension, other strides free.
        d: bfloat16 or float32, unit last stride; written in place.
        c: like d, added; may be `d` itself.
        epilogue: Identity or Alpha; BF16StochasticRounding where d has one row per b. `epilogue_class` is another name
            for it. A bool in this place is taken as use_cublaslt (DeepGEMM 2.6.1).
        use_cublaslt: ask for the vendor's BLAS, where there is one.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Example:
        >>> import torch, unikernels as uk
        >>> a, b, d = torch.ones(4, 2, 8).bfloat16(), torch.ones(2, 3, 8).bfloat16(), torch.empty(4, 2, 3)
        >>> uk.einsum("bhr,hdr->bhd", a, b, d)
        >>> d[0, 0, 0].item()
        8.0

    Contract: DeepGEMM 2.8.2, `einsum`.
    """
    function = "einsum"
    if isinstance(epilogue, bool):
        epilogue, use_cublaslt = None, epilogue
    uses_vendor_library = boolean(function, "use_cublaslt", use_cublaslt)
    alpha, store = validate.epilogue_and_alpha(function, None, epilogue, epilogue_class)
    if store is not None and expr in (_REDUCTION, "bhd,bhr->hdr"):
        raise InvalidArgumentError(
            f"{function}: {expr!r} takes no epilogue {type(store).__name__}, expected None, Identity() or Alpha(...)."
        )
    if expr == _REDUCTION:
        _reduce(function, a, b, d, c, alpha, uses_vendor_library)
        return
    form = _form(function, expr, (_REDUCTION,))
    left = _operand(function, "a", a, torch.bfloat16, form.a)
    right = _operand(function, "b", b, torch.bfloat16, form.b)
    _run(function, expr, form, left, right, d, c, alpha, store, uses_vendor_library)


def _reduce(function: str, a: object, b: object, d: object, c: object, alpha: float, uses_vendor_library: bool) -> None:
    """The form that sums over the batch: "bmk,bnk->mn"."""
    left = _operand(function, "a", a, torch.bfloat16, (0, 1, 2))
    right = _operand(function, "b", b, torch.bfloat16, (0, 1, 2))
    _require_equal(function, _REDUCTION, left, right)
    output = validate.output(function, "d", d, (left.mn, right.mn))
    for name, tensor in (("a", left.data), ("b", right.data), ("d", output)):
        validate.require_contiguous(function, name, tensor)
    validate.require_same_device(function, output, a=left.data, b=right.data)
    addend = validate.addend(function, c, output)
    if output.dtype is torch.float32 and addend is not output:
        raise InvalidArgumentError(
            f"{function}: {_REDUCTION!r} adds to a float32 d, so c is d is expected, got "
            f"{'no c' if addend is None else 'another tensor'}. Zero d, and pass it as c too."
        )
    if output.dtype is torch.bfloat16 and addend is not None:
        raise InvalidArgumentError(
            f"{function}: {_REDUCTION!r} with a bfloat16 d takes no c. Use a float32 d to accumulate."
        )
    if output.numel() == 0:
        return
    validate.refuse_overlap(function, "d", output, a=left.data, b=right.data)
    if left.data.numel() == 0:
        write_empty_product(output, addend, None)
        return
    bound("batched_gemm", output)(
        BatchedGemmProblem(left, right, output, addend, alpha, sums_batch=True, uses_vendor_library=uses_vendor_library)
    )


def fp8_einsum(
    expr: str,
    a: Pair,
    b: Pair,
    d: Tensor | Pair,
    c: Tensor | None = None,
    recipe: tuple[int, int, int] = _FP8_RECIPE,
    epilogue: Epilogue | None = None,
    *,
    epilogue_class: Epilogue | None = None,
) -> None:
    """Compute d = c + the contraction `expr` of block-scaled FP8 tensors.

    Args:
        expr: exactly one of the rows below, which says what one scale covers in each dimension of the data:

            ================  ==========================  ====================================
            expression        scales of a                 scales of b
            ================  ==========================  ====================================
            bhr,hdr->bhd      [b, h, ceil(r/gran_k)]      [h, ceil(d/gran_n), ceil(r/gran_k)]
            bhd,hdr->bhr      [b, h, ceil(d/gran_k)]      [h, ceil(d/gran_k), ceil(r/gran_n)]
            bhd,bhr->hdr      [ceil(b/gran_k), h, d]      [ceil(b/gran_k), h, r]
            ================  ==========================  ====================================

            Packed scales have their words where the table has gran_k blocks; any strides.
        a, b: (data, scales), data float8_e4m3fn with unit stride in the last dimension.
        d: bfloat16 or float32, unit last stride; or, for the first expression, a pair (float8_e4m3fn tensor, sfd) as in
            `epilogue.FP8CastWithClamp`: sfd int32 [b, h*d/128] with strides (1, >= b), d a multiple of 128.
        c: like d, added; may be `d` itself; not with an FP8 output.
        recipe: (gran_m, gran_n, gran_k); gran_m and gran_n are 1 for the last expression. Left out it follows the scales
            of b: float32 (1, 128, 128), int32 (1, 1, 128), int16 (1, 1, 32).
        epilogue: an object of `unikernels.epilogue`. `epilogue_class` is another name for it.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.
        UnsupportedOperationError: the backend has no kernel for this combination.

    Contract: DeepGEMM 2.8.2, `fp8_einsum`.
    """
    function = "fp8_einsum"
    form = _form(function, expr)
    (a_data, sfa), (b_data, sfb) = validate.pair(function, "a", a), validate.pair(function, "b", b)
    alpha, store = validate.epilogue_and_alpha(function, None, epilogue, epilogue_class)
    if isinstance(d, (tuple, list)):
        if len(d) != 2:
            raise ArgumentTypeError(
                f"{function}: d is a {type(d).__name__} of {len(d)}, expected a tensor or (tensor, sfd)."
            )
        if store is not None or alpha != 1.0:
            raise InvalidArgumentError(
                f"{function}: d is a pair (tensor, sfd), which excludes an epilogue. Give one of them."
            )
        d, sfd = d
        store = FP8CastWithClamp(validate.require_tensor(function, "d[1]", sfd))
    left = _operand(function, "a", a_data, torch.float8_e4m3fn, form.a)
    right = _operand(function, "b", b_data, torch.float8_e4m3fn, form.b)
    _run(function, expr, form, left, right, d, c, alpha, store, recipe=recipe, sfa=sfa, sfb=sfb)
