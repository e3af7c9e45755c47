"""Mega MoE functions: one call does expert dispatch, linear 1, SwiGLU, linear 2 and combine over a group of ranks.

Contract: DeepGEMM 2.8.2; differences are listed in docs/compatibility.md. `SymmBuffer` is in
unikernels/mega_moe/symmetric_buffer.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import environment, validate
from .._caller import stacklevel_of_caller
from .._registry import backend_for, bound
from ..epilogue import real_number
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..mega_moe.sizes import MMA_TYPES, block_m, checked_activation, checked_mma_type
from ..mega_moe.symmetric_buffer import SymmBuffer
from ..mega_moe.weights import StoredWeights
from ..operations.mega_moe import MegaMoeProblem
from ..validate_mega_moe import raw_weights, require_same_experts, transformed_pair
from ..validate_plain import boolean, integer, optional_dense

#: Weights as users store them: a pair (data, scales), or one bfloat16 tensor.
Weights = StoredWeights


def get_symm_buffer_for_mega_moe(
    group: Any,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    num_shared_experts: int = 0,
    use_fp8_dispatch: bool | None = None,
    mma_type: str = "fp8xfp4",
    activation: str = "swiglu",
) -> SymmBuffer:
    """Return a new SymmBuffer; collective over `group`. Arguments and views are described there.

    Args:
        num_shared_experts: Ns. A bool here is taken for `use_fp8_dispatch`, which stood here in DeepGEMM 2.6.1.
        use_fp8_dispatch: deprecated; must agree with `mma_type`.

    Raises:
        InvalidArgumentError: a size breaks a limit, or use_fp8_dispatch contradicts mma_type.
        UnikernelsError: the ranks' arguments differ, or a rank cannot be reached.

    Contract: DeepGEMM 2.8.2, `get_symm_buffer_for_mega_moe`.
    """
    function = "get_symm_buffer_for_mega_moe"
    if isinstance(num_shared_experts, bool):
        if use_fp8_dispatch is not None:
            raise ArgumentTypeError(f"{function}: num_shared_experts is {num_shared_experts}, expected a Python int.")
        use_fp8_dispatch = bool(num_shared_experts)
        num_shared_experts = 0
    if use_fp8_dispatch is not None:
        is_fp8 = checked_mma_type(function, mma_type).startswith("fp8")
        if boolean(function, "use_fp8_dispatch", use_fp8_dispatch) is not is_fp8:
            raise InvalidArgumentError(
                f"{function}: use_fp8_dispatch={use_fp8_dispatch} contradicts mma_type={mma_type!r}, which names the "
                f"activations' type first. Leave use_fp8_dispatch out and choose mma_type."
            )
        message = f"{function}: use_fp8_dispatch is deprecated; mma_type says it."
        warnings.warn(message, DeprecationWarning, stacklevel=stacklevel_of_caller())
    return SymmBuffer(
        group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden, num_shared_experts,
        mma_type, activation,
    )  # fmt: skip


def transform_weights_for_mega_moe(
    l1_weights: Weights, l2_weights: Weights, activation: str = "swiglu"
) -> tuple[Weights, Weights]:
    """Return (l1, l2) in the form the Mega MoE kernel of the backend in force reads. Done once, when weights are loaded.

    The result is opaque: tensors, or pairs of tensors, to be stored, moved and passed on as they are. Its tensors have
    one dimension more than raw ones on the CPU (so neither form is ever taken for the other) and may share memory with
    the arguments.

    Args:
        l1_weights: logically [experts, 2I, H], gate rows first, then up rows. A pair (data, scales): float8_e4m3fn, or
            FP4 [experts, 2I, H/2] as int8, uint8 or float4_e2m1fn_x2; scales packed UE8M0 with one scale per row and 32
            columns, int32 [experts, 2I, H/128] or int16 [experts, 2I, H/64], any strides. Or one bfloat16 tensor.
            Shared experts: the same without the first dimension.
        l2_weights: logically [experts, H, I], in the same way.
        activation: 'swiglu'.

    Returns:
        two pairs, or two tensors for bfloat16.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; float32 scales are refused with the call that
            packs them.

    Example:
        >>> import torch, unikernels as uk
        >>> l1, l2 = uk.transform_weights_for_mega_moe(torch.ones(4, 512, 128).bfloat16(), torch.ones(4, 128, 256).bfloat16())

    Contract: DeepGEMM 2.8.2, `transform_weights_for_mega_moe`.
    """
    function = "transform_weights_for_mega_moe"
    checked_activation(function, activation)
    problem = raw_weights(function, l1_weights, l2_weights)
    transformed: tuple[Weights, Weights] = bound("transform_mega_moe_weights", problem.l1.data)(problem)
    return transformed


def fp8_fp4_mega_moe(
    y: Tensor,
    l1_weights: tuple[Tensor, Tensor],
    l2_weights: tuple[Tensor, Tensor],
    sym_buffer: SymmBuffer,
    shared_l1_weights: tuple[Tensor, Tensor] | None = None,
    shared_l2_weights: tuple[Tensor, Tensor] | None = None,
    cumulative_local_expert_recv_stats: Tensor | None = None,
    recipe: tuple[int, int, int] = (1, 1, 32),
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
) -> None:
    """Compute y[t] = sum over slots j of the expert topk_idx[t, j] applied to token t, over all ranks of the group.

    With x = x * x_sf, for every token t and slot j with e = topk_idx[t, j] >= 0, on the rank that owns e::

        g, u = bf16(split(x[t] @ W1[e].T))
        g, u = min(g, c), min(max(u, -c), c)                       # only with activation_clamp = c
        a = g * sigmoid(g) * u * topk_weights[t, j]                # float32
        a = E4M3 with a power-of-two scale per 32 columns
        o[t, j] = bf16(a @ W2[e].T)
        y[t] = bf16(shared expert + sum_j o[t, j])                 # float32, shared first, then slot order

    The shared experts are one MLP that every token passes with weight 1. A token without any expert gives zeros. An
    expert named twice counts twice. Collective: every rank calls with its own number of tokens, possibly 0. Inputs are
    read from the views of `sym_buffer`, which the caller fills before each call.

    Args:
        y: [T, H] bfloat16, T <= sym_buffer.num_max_tokens_per_rank, unit stride along H; written in place.
        l1_weights, l2_weights: this rank's experts, from `transform_weights_for_mega_moe`.
        sym_buffer: a buffer of mma_type 'fp8xfp4' or 'fp8xfp8'.
        shared_l1_weights, shared_l2_weights: FP8 (data, scales) of width Is = num_shared_experts * I, transformed as
            well; both, or neither. Needs num_shared_experts > 0 and shared_l1_acts_sf filled.
        cumulative_local_expert_recv_stats: [experts per rank] int32, contiguous; the number of (token, slot) pairs of
            all ranks routed to each local expert is added.
        recipe: (1, 1, 32), the only one.
        activation: 'swiglu'.
        activation_clamp: c >= 0, or None.
        fast_math: allow a faster exponential and reciprocal.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written. With several ranks
            the others raise as well.
        UnikernelsError: the ranks' calls differ, or a rank cannot be reached.

    Contract: DeepGEMM 2.8.2, `fp8_fp4_mega_moe` (2.6.1 has no shared weights: pass what follows by keyword).
    """
    _mega_moe(
        "fp8_fp4_mega_moe", y, l1_weights, l2_weights, sym_buffer, shared_l1_weights, shared_l2_weights,
        cumulative_local_expert_recv_stats, recipe, activation, activation_clamp, fast_math,
    )  # fmt: skip


def bf16_mega_moe(
    y: Tensor,
    l1_weights: Tensor,
    l2_weights: Tensor,
    sym_buffer: SymmBuffer,
    shared_l1_weights: Tensor | None = None,
    shared_l2_weights: Tensor | None = None,
    cumulative_local_expert_recv_stats: Tensor | None = None,
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
) -> None:
    """Compute the same as `fp8_fp4_mega_moe` for bfloat16 activations and weights; a is rounded to bf16 instead of E4M3.

    Args:
        sym_buffer: a buffer of mma_type 'bf16xbf16'.
        others: as in `fp8_fp4_mega_moe`, weights being single bfloat16 tensors.

    Raises:
        InvalidArgumentError, UnikernelsError: as `fp8_fp4_mega_moe`.

    Contract: DeepGEMM 2.8.2, `bf16_mega_moe`.
    """
    _mega_moe(
        "bf16_mega_moe", y, l1_weights, l2_weights, sym_buffer, shared_l1_weights, shared_l2_weights,
        cumulative_local_expert_recv_stats, (1, 1, 32), activation, activation_clamp, fast_math,
    )  # fmt: skip


def _mega_moe(
    function: str,
    y: Any,
    l1: Any,
    l2: Any,
    sym_buffer: object,
    shared_l1: Any,
    shared_l2: Any,
    stats: Any,
    recipe: object,
    activation: object,
    clamp: object,
    fast_math: object,
) -> None:
    if not isinstance(sym_buffer, SymmBuffer):
        raise ArgumentTypeError(
            f"{function}: sym_buffer is a {type(sym_buffer).__name__}, expected a SymmBuffer from "
            f"get_symm_buffer_for_mega_moe(...)."
        )
    sym_buffer.require_live(function)
    with sym_buffer.refusals_announced(function):
        _settings(function, recipe, activation)
        y = _output(function, y, sym_buffer)
        problem = MegaMoeProblem(
            function,
            y,
            *_routed(function, l1, l2, sym_buffer),
            sym_buffer,
            *_shared(function, shared_l1, shared_l2, sym_buffer),
            _stats(function, stats, y, sym_buffer),
            _clamp(function, clamp),
            boolean(function, "fast_math", fast_math),
        )
        run: Callable[[MegaMoeProblem], None] = bound("mega_moe", y)
    run(problem)
    if environment.read("DG_COMM_KERNEL_DEBUG") == "1":
        sym_buffer.buffer.zero_()


def _settings(function: str, recipe: object, activation: object) -> None:
    if not isinstance(recipe, (tuple, list)) or tuple(recipe) != (1, 1, 32):
        raise InvalidArgumentError(
            f"{function}: recipe is {recipe!r}, expected (1, 1, 32): one scale per row and 32 columns everywhere."
        )
    checked_activation(function, activation)


def _clamp(function: str, value: object) -> float | None:
    if value is None:
        return None
    limit = real_number(function, "activation_clamp", value)
    if math.isnan(limit) or limit < 0:
        raise InvalidArgumentError(
            f"{function}: activation_clamp is {value}, expected a number >= 0 (the largest gate and |up|), or None."
        )
    return None if math.isinf(limit) else limit


def _output(function: str, y: object, buffer: SymmBuffer) -> Tensor:
    """Check y, that it fits the buffer, and that the buffer fits the function and the backend."""
    is_fp8 = function.startswith("fp8")
    if buffer.sizes.is_quantised is not is_fp8:
        wanted = "fp8xfp4 or fp8xfp8" if is_fp8 else "bf16xbf16"
        raise InvalidArgumentError(
            f"{function}: sym_buffer has mma_type {buffer.mma_type!r}, expected {wanted}. Construct it with that mma_type, "
            f"or call {'bf16_mega_moe' if is_fp8 else 'fp8_fp4_mega_moe'}."
        )
    tensor = validate.require_tensor(function, "y", y)
    num_tokens = tensor.shape[0] if tensor.ndim else 0
    tensor = validate.output(
        function, "y", tensor, (num_tokens, buffer.hidden), (torch.bfloat16,), "(num_tokens, hidden of sym_buffer)"
    )
    if num_tokens > buffer.num_max_tokens_per_rank:
        raise InvalidArgumentError(
            f"{function}: y has {num_tokens} rows (tokens), sym_buffer holds at most {buffer.num_max_tokens_per_rank} per "
            f"rank. Construct it with a larger num_max_tokens_per_rank, or split the batch."
        )
    if tensor.device != buffer.buffer.device:
        raise InvalidArgumentError(
            f"{function}: y is on {tensor.device}, sym_buffer on {buffer.buffer.device}. Both must be on one device."
        )
    validate.refuse_overlap(function, "y", tensor, sym_buffer=buffer.buffer)
    backend = backend_for(tensor)
    if backend.mega_moe_regions(buffer.sizes) != buffer.regions:
        raise InvalidArgumentError(
            f"{function}: sym_buffer was laid out for another backend than '{backend.name}'. Construct it under the backend "
            f"that runs the call."
        )
    return tensor


def _routed(function: str, l1: Any, l2: Any, buffer: SymmBuffer) -> tuple[Any, Any]:
    kind = MMA_TYPES[buffer.mma_type][1]
    leading = (buffer.sizes.num_local_experts,)
    return transformed_pair(
        function, ("l1_weights", "l2_weights"), (l1, l2), kind, leading, buffer.intermediate_hidden, buffer
    )


def _shared(function: str, l1: Any, l2: Any, buffer: SymmBuffer) -> tuple[Any, Any]:
    names = ("shared_l1_weights", "shared_l2_weights")
    require_same_experts(function, names, (l1, l2), buffer.num_shared_experts)
    if l1 is None:
        return None, None
    kind = MMA_TYPES[buffer.mma_type][0]
    return transformed_pair(function, names, (l1, l2), kind, (), buffer.sizes.shared_intermediate_hidden, buffer)


def _stats(function: str, stats: object, y: Tensor, buffer: SymmBuffer) -> Tensor | None:
    name = "cumulative_local_expert_recv_stats"
    tensor = optional_dense(
        function,
        name,
        stats,
        (buffer.sizes.num_local_experts,),
        torch.int32,
        "(experts per rank)",
        buffer.buffer.device,
    )
    if tensor is not None:
        validate.refuse_overlap(function, name, tensor, y=y, sym_buffer=buffer.buffer)
    return tensor


def get_block_m_for_mega_moe(
    num_ranks: int, num_experts: int, num_max_tokens_per_rank: int, num_tokens: int, num_topk: int, mma_type: str
) -> int:
    """Return the token tile B that a call uses: it decides in which row of `shared_l1_acts_sf` a token's scales stand.

    Args:
        num_tokens: tokens of this rank in the call.
        others: as in `SymmBuffer`.

    Returns:
        one of 16, 32, 64, 128, 192, 240, growing with the mean number of tokens per expert.

    Raises:
        InvalidArgumentError: a size is not positive, or mma_type is unknown.

    >>> import unikernels as uk
    >>> uk.get_block_m_for_mega_moe(8, 384, 8192, 1024, 6, "fp8xfp4")
    192

    Contract: DeepGEMM 2.8.2, `get_block_m_for_mega_moe`.
    """
    function = "get_block_m_for_mega_moe"
    integer(function, "num_max_tokens_per_rank", num_max_tokens_per_rank, 1)
    integer(function, "num_tokens", num_tokens, 0)
    for name, value in (("num_ranks", num_ranks), ("num_experts", num_experts), ("num_topk", num_topk)):
        integer(function, name, value, 1)
    checked_mma_type(function, mma_type)
    return block_m(num_ranks, num_experts, num_tokens, num_topk)
