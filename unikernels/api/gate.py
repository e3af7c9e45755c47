"""Routing of tokens to experts: `bf16_mega_gate`. The hyper-connection functions are in hyper_connection.py.

Contract: DeepGEMM 2.8.2; differences are listed in docs/compatibility.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import validate
from .._registry import bound
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..operations.mega_gate import MegaGateProblem, ScoringFunction
from ..validate_plain import boolean, dense, integer, multiple, number, optional_dense, together

_SCORING_FUNCTIONS: tuple[ScoringFunction, ...] = ("sqrtsoftplus", "sigmoid", "identity")
_MAX_EXPERTS = 512
_MAX_SLOTS = 32
_MAX_TOKENS = 1 << 20


def bf16_mega_gate(
    x: Tensor,
    weight: Tensor,
    num_topk: int,
    use_shared_as_routed: bool,
    num_shared_experts: int,
    routed_scaling_factor: float,
    ep_rank: int,
    scoring_func: str = "sqrtsoftplus",
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    image_bias: Tensor | None = None,
    image_token_mask: Tensor | None = None,
    fix_routing_mask: Tensor | None = None,
    to_physical_map: Tensor | None = None,
    logical_count: Tensor | None = None,
    unmapped_topk_idx: Tensor | None = None,
    force_random: Tensor | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose experts: top-k of f(x @ weight.T) + bias; weights f / (sum of chosen f + 1e-20) * routed_scaling_factor.

    T tokens, H hidden, E experts, S = num_shared_experts if use_shared_as_routed else 0, Kp = num_topk + S. Per token
    the first rule that applies: `mask` False gives indices -1 and weights 0; `force_random` gives Kp distinct physical
    experts and weights in (0, 1], reproducibly; `fix_routing_mask` takes the experts from `unmapped_topk_idx`; else the
    num_topk largest of score + bias, best first, ties to the smaller index. Weights use scores without bias.

    Args:
        x: [T, H] bfloat16, H a multiple of 256, T at most 2^20. weight: [E, H] bfloat16, E a multiple of 4, up to 512.
        num_topk: 1 to E; Kp at most 32.
        use_shared_as_routed: append the shared experts E..E+S-1 with weight 1; needs S of 1 or 2, num_topk a multiple
            of S and E a multiple of num_topk / S.
        num_shared_experts: S; ignored without use_shared_as_routed.
        routed_scaling_factor: finite.
        ep_rank: not negative; spreads tokens of different ranks over replicas.
        scoring_func: f: "sqrtsoftplus", "sigmoid" or "identity".
        mask, image_token_mask, fix_routing_mask, force_random: bool [T].
        bias, image_bias: [E] float32, added for ranking only; image_bias (with image_token_mask) replaces bias for
            image tokens.
        to_physical_map: [E+S, dup] int32, with logical_count [E+S] int32 of 1..dup: logical expert l of token t becomes
            to_physical_map[l, ((ep_rank + 23333 * t) mod 2^32) mod logical_count[l]].
        unmapped_topk_idx: [T, num_topk] int64, unit last stride; read for fix_routing_mask, receives the logical
            indices of all tokens (-1 for inactive and random ones).
        out: (int64 [T, Kp], float32 [T, Kp]) to write to and return; allocated if None.

    Returns:
        (topk_idx, topk_weights): int64 and float32 [T, Kp].

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; on the CPU also a score that is not finite
            (even of a token that `mask` leaves out), a fixed expert out of range or a bad logical_count. Nothing has
            been written.
        UnsupportedOperationError: the backend does not have this operation.

    Example:
        >>> import torch, unikernels as uk
        >>> x, weight = torch.zeros(2, 256).bfloat16(), torch.zeros(8, 256).bfloat16()
        >>> uk.bf16_mega_gate(x, weight, 2, False, 0, 1.0, 0)[0].tolist()
        [[0, 1], [0, 1]]

    Contract: DeepGEMM 2.8.2, `bf16_mega_gate`; the other two scoring functions as in 2.8.0.
    """
    function = "bf16_mega_gate"
    t, e = _check_operands(function, x, weight)
    s = _check_numbers(function, e, num_topk, use_shared_as_routed, num_shared_experts)
    factor = number(function, "routed_scaling_factor", routed_scaling_factor)
    num_topk, ep_rank = int(num_topk), integer(function, "ep_rank", ep_rank, 0)
    scoring = _scoring(function, scoring_func)
    tensors: dict[str, Tensor | None] = {
        "mask": mask, "bias": bias, "image_bias": image_bias, "image_token_mask": image_token_mask,
        "fix_routing_mask": fix_routing_mask, "to_physical_map": to_physical_map, "logical_count": logical_count,
        "force_random": force_random,
    }  # fmt: skip
    _check_options(function, tensors, t, e, s, x.device)
    _check_unmapped(function, unmapped_topk_idx, fix_routing_mask, t, num_topk, x.device)
    idx, weights = _outputs(function, out, (t, num_topk + s), x.device)
    written = {"out[0]": idx, "out[1]": weights, "unmapped_topk_idx": unmapped_topk_idx}
    _refuse_overlap(function, written, {"x": x, "weight": weight, **tensors})
    if t:
        problem = MegaGateProblem(
            x, weight, num_topk, s, factor, ep_rank, scoring, idx, weights,
            unmapped_topk_idx=unmapped_topk_idx, **tensors,
        )  # fmt: skip
        bound("mega_gate", x)(problem)
    return idx, weights


def _check_operands(function: str, x: object, weight: object) -> tuple[int, int]:
    """Check x and weight; returns (number of tokens, number of experts)."""
    sizes = []
    for name, value in (("x", x), ("weight", weight)):
        tensor = validate.require_tensor(function, name, value)
        if tensor.ndim != 2:
            raise InvalidArgumentError(
                f"{function}: {name} has shape {tuple(tensor.shape)}, expected two dimensions "
                f"{'(tokens, hidden)' if name == 'x' else '(experts, hidden)'}."
            )
        sizes.append(tensor)
    x, weight = sizes
    (t, h), e = x.shape, weight.shape[0]
    dense(function, "x", x, (t, h), torch.bfloat16, "(tokens, hidden)", x.device)
    dense(function, "weight", weight, (e, h), torch.bfloat16, "(experts, hidden), with the hidden size of x", x.device)
    multiple(function, "hidden", h, 256, f"columns of x {tuple(x.shape)}")
    multiple(function, "number of experts", e, 4, f"rows of weight {tuple(weight.shape)}")
    integer(function, "number of experts", e, 4, _MAX_EXPERTS, "rows of weight")
    integer(function, "number of tokens", t, 0, _MAX_TOKENS, "rows of x")
    return t, e


def _scoring(function: str, name: object) -> ScoringFunction:
    for known in _SCORING_FUNCTIONS:
        if name == known:
            return known
    known_names = ", ".join(map(repr, _SCORING_FUNCTIONS))
    raise InvalidArgumentError(f"{function}: scoring_func is {name!r}, expected one of {known_names}.")


def _check_numbers(function: str, e: int, num_topk: object, use_shared: object, num_shared: object) -> int:
    """Check how many experts are chosen; returns how many shared ones are appended."""
    k = integer(function, "num_topk", num_topk, 1, e, "the number of experts")
    s = integer(function, "num_shared_experts", num_shared, 0)
    if not boolean(function, "use_shared_as_routed", use_shared):
        s = 0
    elif s not in (1, 2):
        raise InvalidArgumentError(
            f"{function}: num_shared_experts is {s} with use_shared_as_routed=True, expected 1 or 2."
        )
    elif k % s or e % (k // s):
        raise InvalidArgumentError(
            f"{function}: num_topk is {k} with {s} shared and {e} routed experts, expected num_topk to be a "
            f"multiple of num_shared_experts and the number of experts a multiple of num_topk / num_shared_experts, "
            f"so that every rank gets the same share."
        )
    if k + s > _MAX_SLOTS:
        raise InvalidArgumentError(
            f"{function}: num_topk + num_shared_experts is {k + s}, expected at most {_MAX_SLOTS} slots per token."
        )
    return s


def _check_options(
    function: str, tensors: dict[str, Tensor | None], t: int, e: int, s: int, device: torch.device
) -> None:
    """Check the optional inputs and that pairs are complete."""
    for name in ("mask", "image_token_mask", "fix_routing_mask", "force_random"):
        optional_dense(function, name, tensors[name], (t,), torch.bool, "one flag per token", device)
    for name in ("bias", "image_bias"):
        optional_dense(function, name, tensors[name], (e,), torch.float32, "one value per expert", device)
    pairs = (("image_bias", "image_token_mask"), ("to_physical_map", "logical_count"))
    reasons = ("which tokens the bias is for", "how many entries of each row count")
    for pair, why in zip(pairs, reasons, strict=True):
        together(function, why, **{name: tensors[name] for name in pair})
    table = tensors["to_physical_map"]
    if table is not None:
        table = validate.require_tensor(function, "to_physical_map", table)
        dup = table.shape[1] if table.ndim == 2 and table.shape[1] else 1
        why = f"(experts {e} + shared {s}, replicas)"
        dense(function, "to_physical_map", table, (e + s, dup), torch.int32, why, device)
        dense(function, "logical_count", tensors["logical_count"], (e + s,), torch.int32, why[:-11] + ",)", device)


def _check_unmapped(
    function: str, unmapped: object, fix_routing_mask: Tensor | None, t: int, k: int, device: torch.device
) -> None:
    if unmapped is None:
        if fix_routing_mask is not None:
            raise InvalidArgumentError(
                f"{function}: fix_routing_mask given without unmapped_topk_idx, expected both: the fixed experts are "
                f"read from unmapped_topk_idx."
            )
        return
    tensor = validate.output(
        function, "unmapped_topk_idx", unmapped, (t, k), (torch.int64,), "(tokens, num_topk), without shared experts"
    )
    validate.require_same_device(function, torch.empty(0, device=device), unmapped_topk_idx=tensor)


def _outputs(function: str, out: Any, shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the checked or newly allocated (indices, weights)."""
    if out is None:
        return torch.empty(shape, dtype=torch.int64, device=device), torch.empty(shape, device=device)
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise ArgumentTypeError(
            f"{function}: out is a {type(out).__name__}, expected a pair (int64 indices, float32 weights) of shape "
            f"{shape}."
        )
    why = "(tokens, num_topk + shared experts)"
    return (
        dense(function, "out[0]", out[0], shape, torch.int64, why, device),
        dense(function, "out[1]", out[1], shape, torch.float32, why, device),
    )


def _refuse_overlap(function: str, written: dict[str, Tensor | None], read: dict[str, Tensor | None]) -> None:
    others = dict(read)
    for name, tensor in written.items():
        if tensor is not None:
            validate.refuse_overlap(function, name, tensor, **others)
            others[name] = tensor
