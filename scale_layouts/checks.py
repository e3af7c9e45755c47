"""The check of a scale tensor a user passed, and the wording of its refusals.

The accepting path runs in every GEMM call: it looks at dtype and shape and makes no tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NoReturn

import torch
from torch import Tensor

from unikernels.errors import ArgumentTypeError, InvalidArgumentError

from .formats import FORMAT_OF_DTYPE, ScaleFormat, Scales, ceil_div
from .native_packing import transcode

_BYTE_DTYPES = frozenset({torch.uint8, getattr(torch, "float8_e8m0fnu", torch.uint8)})
#: How the function called lets its user choose granularities: `recipe_a` and `recipe_b`; only `recipe` of three numbers;
#: `recipe=(1, 1, gran_k)`; `recipe` of one operand; not at all.
RecipeForm = Literal["per_operand", "joint", "along_k", "single", "fixed"]

_KNOWN_GRANULARITIES = ((1, 32), (1, 128), (128, 128), (128, 32))


def normalize_scales(
    tensor: Tensor,
    *,
    mn: int,
    k: int,
    gran_mn: int,
    gran_k: int,
    num_groups: int | None = None,
    name: str,
    function: str,
    recipe_form: RecipeForm = "per_operand",
    pack: Callable[[Tensor], Tensor] | None = None,
) -> Scales:
    """Return `tensor` as the scales of a [mn, k] matrix, or [num_groups, mn, k]; the shape must fit exactly.

    With R = ceil(mn / gran_mn) rows and B = ceil(k / gran_k) blocks, any strides:

    * float32 [.., R, B];
    * int32 [.., R, ceil(B / 4)] and int16 [.., R, ceil(B / 2)], UE8M0 exponents, first block in the low byte;
    * uint8 or float8_e8m0fnu, one exponent a byte: flat [.., R, B] or in pairs [.., R, ceil(B / 2), 2]; these become
      int16 words. The padding byte of an odd last pair is dropped.

    Args:
        name: the argument, for example "sfb"; messages name the recipe argument that goes with it.
        function: the public function, first word of every message.
        recipe_form: what a message may propose for other granularities.
        pack: a backend's own `words_of_bytes`.
    Raises:
        InvalidArgumentError: dtype or shape do not fit; received and expected shape are named.
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(
            f"{function}: {name} is a {type(tensor).__name__}, expected a tensor of block scales.\n"
            "  Pass the operand as a pair (data, scales)."
        )
    scale_format = FORMAT_OF_DTYPE.get(tensor.dtype)
    rows = mn if gran_mn == 1 else -(-mn // gran_mn)
    num_blocks = -(-k // gran_k)
    leading = () if num_groups is None else (num_groups,)
    if scale_format is None:
        exponents = _bytes(tensor, (*leading, rows), num_blocks)
        if exponents is None:
            _refuse(tensor, mn, k, gran_mn, gran_k, leading, name, function, recipe_form)
        words = _words_in_place(exponents)
        if words is None:
            words = (pack or words_of_bytes)(exponents)
        return Scales(words, ScaleFormat.UE8M0X2_INT16, gran_mn, gran_k, mn, k)
    per_word = scale_format.per_word
    num_words = num_blocks if per_word == 1 else -(-num_blocks // per_word)
    if tensor.shape != (*leading, rows, num_words):
        _refuse(tensor, mn, k, gran_mn, gran_k, leading, name, function, recipe_form)
    return Scales(tensor, scale_format, gran_mn, gran_k, mn, k)


def words_of_bytes(exponents: Tensor) -> Tensor:
    """Return uint8 [.., rows, blocks] as int16 [.., rows, ceil(blocks / 2)], the first block in the low byte."""
    *leading, num_blocks = exponents.shape
    words = torch.empty((*leading, -(-num_blocks // 2)), dtype=torch.int16, device=exponents.device)
    transcode(exponents, num_blocks, words, num_blocks)
    return words


def _bytes(tensor: Tensor, row_shape: tuple[int, ...], num_blocks: int) -> Tensor | None:
    """Return uint8 [*row_shape, num_blocks] of a byte tensor in flat or pair form, or None if it is neither."""
    if tensor.dtype not in _BYTE_DTYPES:
        return None
    if tensor.shape == (*row_shape, -(-num_blocks // 2), 2):
        return tensor.view(torch.uint8).flatten(-2)[..., :num_blocks]
    return tensor.view(torch.uint8) if tensor.shape == (*row_shape, num_blocks) else None


def _words_in_place(exponents: Tensor) -> Tensor | None:
    """Return bytes as words without moving them, or None where pairs are not next to each other in memory."""
    *steps, step = exponents.stride()
    is_paired = step == 1 and exponents.shape[-1] % 2 == 0 and not any(other % 2 for other in steps)
    return exponents.view(torch.int16) if is_paired and exponents.storage_offset() % 2 == 0 else None


def _expected_shape(
    dtype: torch.dtype, mn: int, k: int, gran_mn: int, gran_k: int, leading: tuple[int, ...]
) -> tuple[int, ...]:
    scale_format = FORMAT_OF_DTYPE.get(dtype)
    per_word = 1 if scale_format is None else scale_format.per_word
    return (*leading, ceil_div(mn, gran_mn), ceil_div(ceil_div(k, gran_k), per_word))


def _refuse(
    tensor: Tensor,
    mn: int,
    k: int,
    gran_mn: int,
    gran_k: int,
    leading: tuple[int, ...],
    name: str,
    function: str,
    recipe_form: RecipeForm,
) -> NoReturn:
    if tensor.dtype not in FORMAT_OF_DTYPE and tensor.dtype not in _BYTE_DTYPES:
        raise InvalidArgumentError(
            f"{function}: {name} has dtype {tensor.dtype}, expected scales in torch.float32, or UE8M0 exponents in "
            "torch.int32 (4 per word), torch.int16 (2 per word), torch.uint8 or torch.float8_e8m0fnu.\n"
            "  Convert plain scale factors with .float()."
        )
    expected = _expected_shape(tensor.dtype, mn, k, gran_mn, gran_k, leading)
    wanted = str(expected)
    if tensor.dtype in _BYTE_DTYPES:
        wanted += f" or {(*expected[:-1], -(-expected[-1] // 2), 2)}"
    groups = "" if not leading else f"{leading[0]} groups, "
    packing = ""
    scale_format = FORMAT_OF_DTYPE.get(tensor.dtype)
    if scale_format is not None and scale_format.is_packed:
        packing = f", {scale_format.per_word} exponents per {str(scale_format.dtype).removeprefix('torch.')} word"
    raise InvalidArgumentError(
        f"{function}: {name} has shape {tuple(tensor.shape)}, expected {wanted}: one scale per "
        f"{gran_mn}x{gran_k} block of a {mn}x{k} matrix ({groups}{ceil_div(mn, gran_mn)} rows of {ceil_div(k, gran_k)} "
        f"scales{packing}).\n"
        f"  {_hint(tensor, mn, k, gran_mn, gran_k, leading, expected, name, recipe_form)}"
    )


def _hint(
    tensor: Tensor,
    mn: int,
    k: int,
    gran_mn: int,
    gran_k: int,
    leading: tuple[int, ...],
    expected: tuple[int, ...],
    name: str,
    recipe_form: RecipeForm,
) -> str:
    shape = tuple(tensor.shape)
    fitting = [
        known
        for known in _KNOWN_GRANULARITIES
        if known != (gran_mn, gran_k)
        and _recipe(recipe_form, name, *known)
        and shape == _expected_shape(tensor.dtype, mn, k, *known, leading)
    ]
    if fitting:
        known_mn, known_k = fitting[0]
        return (
            f"The shape fits one scale per {known_mn}x{known_k} block: if that is meant, say so with "
            f"{_recipe(recipe_form, name, known_mn, known_k)} (in force is {(gran_mn, gran_k)})."
        )
    if len(shape) == len(expected) and shape == (*expected[:-2], expected[-1], expected[-2]):
        return f"The last two dimensions look exchanged: pass {name}.transpose(-1, -2); any strides are accepted."
    if len(shape) == len(expected) and shape[-1] == expected[-1] and shape[-2] < expected[-2]:
        return (
            f"{expected[-2]} rows are needed: the last block counts although it is partial. Quantise the whole matrix "
            f"of {mn} rows, or pad the scales."
        )
    argument = _recipe(recipe_form, name, gran_mn, gran_k).partition("=")[0]
    described = f", or describe them with {argument}" if argument else ""
    return f"Quantise with gran_k={gran_k} and pass the scales unchanged{described}."


def _recipe(form: RecipeForm, name: str, gran_mn: int, gran_k: int) -> str:
    """Return the argument that chooses these granularities, as one would write it; empty where none can."""
    if name in ("sfa", "sfb") and form == "per_operand":
        return f"recipe_{name[-1]}={(gran_mn, gran_k)}"
    if form == "joint":
        rows = f"{gran_mn}, gran_n" if name == "sfa" else f"gran_m, {gran_mn}"
        return f"recipe=({rows}, {gran_k})"
    if form == "along_k":
        return f"recipe=(1, 1, {gran_k})" if gran_mn == 1 else ""
    return f"recipe={(gran_mn, gran_k)}" if form == "single" else ""
