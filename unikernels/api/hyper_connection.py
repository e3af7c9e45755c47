"""Hyper-connection functions: the pre-norm GEMM alone, and the whole step between two sublayers.

Contract: DeepGEMM 2.8.2; differences are listed in docs/compatibility.md. Routing of tokens to experts is in gate.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .. import validate
from .._registry import bound
from ..errors import InvalidArgumentError
from ..operations.hc_prenorm import HcPrenormProblem
from ..operations.mega_mhc import NUM_STREAMS, MegaMhcProblem, MhcSettings, num_shared_scale_rows
from ..validate_plain import dense, integer, multiple, number, optional_dense, together

#: Widest tile of any architecture; narrower limits are the backends' own.
_MAX_PRENORM_COLUMNS = 128
_MAX_TOKENS = 1 << 20
#: Columns of y that one int32 word of scales covers: four blocks of 32.
_COLUMNS_PER_WORD = 128


def tf32_hc_prenorm_gemm(a: Tensor, b: Tensor, d: Tensor, sqr_sum: Tensor, num_splits: int | None = None) -> None:
    """Compute d = a @ tf32(b).T and sqr_sum[m] = sum_k a[m, k]^2 in float32, possibly as partial sums over splits.

    Args:
        a: [m, k] bfloat16, unit stride along k; k a multiple of 64.
        b: [n, k] float32, unit stride along k; n a multiple of 8, at most 128. Rounded to TF32 (nearest).
        d: [m, n] float32; with num_splits [num_splits, m, n], whose sum over splits is the product. Written in place.
        sqr_sum: [m] float32 contiguous; with num_splits [num_splits, m], likewise.
        num_splits: None, or how many partial sums to write, at least 1. How k is shared out is up to the backend.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.
        UnsupportedOperationError: the backend has a narrower limit on n, k or num_splits.

    Example:
        >>> import torch, unikernels as uk
        >>> d, sqr_sum = torch.empty(3, 24), torch.empty(3)
        >>> uk.tf32_hc_prenorm_gemm(torch.ones(3, 256).bfloat16(), torch.ones(24, 256), d, sqr_sum)
        >>> d[0, 0].item(), sqr_sum[0].item()
        (256.0, 256.0)

    Contract: DeepGEMM 2.8.2, `tf32_hc_prenorm_gemm`.
    """
    function = "tf32_hc_prenorm_gemm"
    m, k = _prenorm_operand(function, "a", a, torch.bfloat16)
    n, k_of_b = _prenorm_operand(function, "b", b, torch.float32)
    if k != k_of_b:
        raise InvalidArgumentError(f"{function}: a has k={k} but b has k={k_of_b}; both must agree.")
    multiple(function, "n", n, 8, f"rows of b {tuple(b.shape)}")
    multiple(function, "k", k, 64, f"columns of a {tuple(a.shape)}")
    if n > _MAX_PRENORM_COLUMNS:
        raise InvalidArgumentError(
            f"{function}: n is {n} (rows of b), expected at most {_MAX_PRENORM_COLUMNS}. Call it for parts of b."
        )
    slabs: tuple[int, ...] = ()
    if num_splits is not None:
        slabs = (integer(function, "num_splits", num_splits, 1),)
    shape = "(num_splits, m, n)" if slabs else "(m, n), as num_splits is None"
    d = validate.output(function, "d", d, (*slabs, m, n), (torch.float32,), shape)
    dense(function, "sqr_sum", sqr_sum, (*slabs, m), torch.float32, shape.replace(", n", ""), a.device)
    validate.require_same_device(function, a, b=b, d=d)
    if m == 0:
        return
    for name, written in (("d", d), ("sqr_sum", sqr_sum)):
        validate.refuse_overlap(function, name, written, a=a, b=b)
    validate.refuse_overlap(function, "d", d, sqr_sum=sqr_sum)
    if not slabs:
        d, sqr_sum = d.unsqueeze(0), sqr_sum.unsqueeze(0)
    bound("hc_prenorm_gemm", a)(HcPrenormProblem(a, b, d, sqr_sum))


def _prenorm_operand(function: str, name: str, value: object, dtype: torch.dtype) -> tuple[int, int]:
    """Check one K-major matrix and return its sizes."""
    tensor = validate.require_tensor(function, name, value)
    validate.require_dtype(function, name, tensor, dtype)
    if tensor.ndim != 2:
        raise InvalidArgumentError(
            f"{function}: {name} has {tensor.ndim} dimensions (shape {tuple(tensor.shape)}), expected 2."
        )
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        raise InvalidArgumentError(
            f"{function}: {name} has strides {tensor.stride()}, expected a unit stride along k. "
            f"Pass {name}.contiguous()."
        )
    return tensor.shape[0], tensor.shape[1]


def mega_mhc(
    x: Tensor,
    residual: Tensor,
    shifted_prev_mix: Tensor | None,
    post_mix: Tensor,
    comb_res_mix: Tensor,
    fn: Tensor,
    mix_scales: Tensor,
    mix_bases: Tensor,
    hc_mult: int,
    hc_norm_eps: float,
    hc_pre_eps: float,
    hc_post_scale: float,
    sinkhorn_eps: float,
    num_sinkhorn_iters: int,
    rmsnorm_weight: Tensor,
    rmsnorm_eps: float,
    rmsnorm_scale: float,
    new_residual: Tensor,
    new_prev_mix: Tensor | None,
    new_post_mix: Tensor,
    new_comb_res_mix: Tensor,
    y_bf16: Tensor | None = None,
    y_fp8: Tensor | None = None,
    y_gemm_sf: Tensor | None = None,
    y_routed_sf: Tensor | None = None,
    y_shared_sf: Tensor | None = None,
    shared_sf_block_m: int = 0,
) -> None:
    """Compute a hyper-connection step: streams R = x * post + comb.T @ residual, mixes of R, y = RMSNorm(mixed R).

    With n = hc_mult = 4 streams, per token (all in float32, fn rounded to TF32)::

        R[j]  = bf16(x * post_mix[j] + sum_i comb_res_mix[i, j] * residual[i])                 -> new_residual
        z     = (fn @ concat(R)) * rsqrt(mean(R^2) + hc_norm_eps)
        z     = z * (mix_scales[0] n times, [1] n times, [2] n*n times) + mix_bases
        pre   = sigmoid(z[:n]) + hc_pre_eps                                                    -> new_prev_mix
        post  = sigmoid(z[n:2n]) * hc_post_scale                                               -> new_post_mix
        C     = softmax(z[2n:] as [n, n], last dim) + sinkhorn_eps; divided by column sums + sinkhorn_eps;
                num_sinkhorn_iters - 1 times by row sums, then column sums (+ sinkhorn_eps)    -> new_comb_res_mix
        u     = bf16(sum_j mix[j] * R[j]), mix = shifted_prev_mix if given, else pre
        y     = bf16(u * rsqrt(mean(u^2) + rmsnorm_eps) * rmsnorm_weight * rmsnorm_scale)      -> y_bf16
        y_fp8, scales = per_token_cast_to_fp8(y, True, 32, True)

    Args:
        x: [T, H] bfloat16, output of the sublayer; H a multiple of 1024, T at most 2^20.
        residual, new_residual: [T, n, H] bfloat16.
        shifted_prev_mix, new_prev_mix: [T, n, 1] float32; both given (the mix of the previous step is applied, this
            step's is handed on) or both None.
        post_mix, new_post_mix: [T, n, 1] float32. comb_res_mix, new_comb_res_mix: [T, n, n] float32.
        fn: [n*(n+2), n*H] float32. mix_scales: [3] float32. mix_bases: [n*(n+2)] float32. rmsnorm_weight: [H] bfloat16.
        y_bf16: [T, H] bfloat16. y_fp8: [T, H] float8_e4m3fn. At least one of them.
        y_gemm_sf: [T, H/128] int32 with strides (1, pitch), pitch >= T and a multiple of 4; or instead of it both of
        y_routed_sf: [T, H/128] int32, row-major, and
        y_shared_sf: [T, H/128] int32 view with strides (1, pitch) of storage for ceil(T / B) * align(B, 128) rows, with
            B = shared_sf_block_m; token t goes to row (t//B)*align(B, 128) + (i//128)*128 + (i%32)*4 + (i%128)//32 with
            i = t % B, which may lie beyond the view.
        shared_sf_block_m: B; given exactly with y_shared_sf.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.
        UnsupportedOperationError: the backend does not have this operation.

    Contract: DeepGEMM 2.8.2, `mega_mhc`. Zero tokens: returns.
    """
    function = "mega_mhc"
    integer(function, "hc_mult", hc_mult, NUM_STREAMS, NUM_STREAMS, "the number of residual streams")
    settings = MhcSettings(
        hc_norm_eps=number(function, "hc_norm_eps", hc_norm_eps),
        hc_pre_eps=number(function, "hc_pre_eps", hc_pre_eps),
        hc_post_scale=number(function, "hc_post_scale", hc_post_scale),
        sinkhorn_eps=number(function, "sinkhorn_eps", sinkhorn_eps),
        num_sinkhorn_iters=integer(function, "num_sinkhorn_iters", num_sinkhorn_iters, 1),
        rmsnorm_eps=number(function, "rmsnorm_eps", rmsnorm_eps),
        rmsnorm_scale=number(function, "rmsnorm_scale", rmsnorm_scale),
    )
    together(
        function,
        "shifted mode hands the mix from step to step",
        shifted_prev_mix=shifted_prev_mix,
        new_prev_mix=new_prev_mix,
    )
    problem = MegaMhcProblem(
        x, residual, shifted_prev_mix, post_mix, comb_res_mix, fn, mix_scales, mix_bases, rmsnorm_weight, settings,
        new_residual, new_prev_mix, new_post_mix, new_comb_res_mix, y_bf16, y_fp8, y_gemm_sf, y_routed_sf, y_shared_sf,
        integer(function, "shared_sf_block_m", shared_sf_block_m, 0),
    )  # fmt: skip
    _check_mhc_tensors(function, problem)
    shared = _check_scales(function, problem)
    _refuse_mhc_overlap(function, problem)
    if x.shape[0]:
        bound("mega_mhc", x)(replace(problem, y_shared_sf=shared))


def _check_mhc_tensors(function: str, p: MegaMhcProblem) -> None:
    """Check dtype, shape, device and contiguity of everything but the scales."""
    x = validate.require_tensor(function, "x", p.x)
    if x.ndim != 2:
        raise InvalidArgumentError(
            f"{function}: x has shape {tuple(x.shape)}, expected two dimensions [tokens, hidden]."
        )
    t, h = x.shape
    n, num_mixes, device = NUM_STREAMS, NUM_STREAMS * (NUM_STREAMS + 2), x.device
    multiple(function, "hidden", h, 1024, f"columns of x {tuple(x.shape)}")
    integer(function, "number of tokens", t, 0, _MAX_TOKENS, "rows of x")
    bf16, fp32 = torch.bfloat16, torch.float32
    for name, shape, dtype, why in (
        ("x", (t, h), bf16, "(tokens, hidden)"),
        ("residual", (t, n, h), bf16, "(tokens, streams, hidden)"),
        ("post_mix", (t, n, 1), fp32, "(tokens, streams, 1)"),
        ("comb_res_mix", (t, n, n), fp32, "(tokens, streams, streams)"),
        ("fn", (num_mixes, n * h), fp32, "(n*(n+2), n*hidden) with n=4 streams"),
        ("mix_scales", (3,), fp32, "one scale for pre, post and comb"),
        ("mix_bases", (num_mixes,), fp32, "n*(n+2) with n=4 streams"),
        ("rmsnorm_weight", (h,), bf16, "(hidden,)"),
        ("new_residual", (t, n, h), bf16, "(tokens, streams, hidden)"),
        ("new_post_mix", (t, n, 1), fp32, "(tokens, streams, 1)"),
        ("new_comb_res_mix", (t, n, n), fp32, "(tokens, streams, streams)"),
    ):
        dense(function, name, getattr(p, name), shape, dtype, why, device)
    for name in ("shifted_prev_mix", "new_prev_mix"):
        optional_dense(function, name, getattr(p, name), (t, n, 1), fp32, "(tokens, streams, 1)", device)
    optional_dense(function, "y_bf16", p.y_bf16, (t, h), bf16, "(tokens, hidden)", device)
    optional_dense(function, "y_fp8", p.y_fp8, (t, h), torch.float8_e4m3fn, "(tokens, hidden)", device)


def _check_scales(function: str, p: MegaMhcProblem) -> Tensor | None:
    """Check which outputs go together and how scales lie in memory; returns y_shared_sf with all rows it spans."""
    if p.y_bf16 is None and p.y_fp8 is None:
        raise InvalidArgumentError(
            f"{function}: neither y_bf16 nor y_fp8 is given, expected at least one output for y."
        )
    has_gemm = p.y_gemm_sf is not None
    has_experts = together(
        function, "routed and shared experts both read y_fp8", y_routed_sf=p.y_routed_sf, y_shared_sf=p.y_shared_sf
    )
    if (p.y_fp8 is not None) != (has_gemm or has_experts) or (has_gemm and has_experts):
        given = [name for name in ("y_fp8", "y_gemm_sf", "y_routed_sf", "y_shared_sf") if getattr(p, name) is not None]
        raise InvalidArgumentError(
            f"{function}: got {', '.join(given)}, expected y_fp8 with exactly one form of scales: "
            f"y_gemm_sf, or y_routed_sf and y_shared_sf."
        )
    if has_experts != (p.shared_sf_block_m > 0):
        raise InvalidArgumentError(
            f"{function}: shared_sf_block_m is {p.shared_sf_block_m} with{'' if has_experts else 'out'} y_shared_sf, "
            f"expected a positive number of rows exactly if y_shared_sf is given."
        )
    (t, h), device = p.x.shape, p.x.device
    words = h // _COLUMNS_PER_WORD
    why = f"(tokens, hidden/{_COLUMNS_PER_WORD})"
    if p.y_gemm_sf is not None:
        _check_mn_major(function, "y_gemm_sf", p.y_gemm_sf, t, words, why, device)
        pitch = p.y_gemm_sf.stride(1)
        if t and (pitch < t or pitch % 4):
            raise InvalidArgumentError(
                f"{function}: y_gemm_sf has strides {p.y_gemm_sf.stride()}, expected (1, pitch) with at least "
                f"{t} tokens as pitch, a multiple of 4 (16 bytes)."
            )
    optional_dense(function, "y_routed_sf", p.y_routed_sf, (t, words), torch.int32, why, device)
    if p.y_shared_sf is None:
        return None
    _check_mn_major(function, "y_shared_sf", p.y_shared_sf, t, words, why, device)
    return _whole_shared_scales(function, p.y_shared_sf, t, p.shared_sf_block_m)


def _check_mn_major(
    function: str, name: str, value: object, t: int, words: int, why: str, device: torch.device
) -> None:
    scales = validate.require_tensor(function, name, value)
    validate.require_dtype(function, name, scales, torch.int32)
    validate.require_shape(function, name, scales, (t, words), why)
    validate.require_same_device(function, torch.empty(0, device=device), **{name: scales})
    if t > 1 and scales.stride(0) != 1:
        raise InvalidArgumentError(
            f"{function}: {name} has strides {scales.stride()}, expected (1, pitch): these scales are MN-major. "
            f"Create it as torch.empty(({words}, rows), dtype=torch.int32).T"
        )


def _whole_shared_scales(function: str, scales: Tensor, t: int, block_m: int) -> Tensor:
    """Widen the view of T rows to all rows that tokens are permuted to."""
    num_rows, words = num_shared_scale_rows(t, block_m), scales.shape[1]
    pitch = scales.stride(1)
    available = scales.untyped_storage().nbytes() // scales.element_size() - scales.storage_offset()
    if t and (pitch < num_rows or (words - 1) * pitch + num_rows > available):
        raise InvalidArgumentError(
            f"{function}: y_shared_sf has pitch {pitch} and {available} words of storage, expected a pitch of at least "
            f"{num_rows} rows and storage for {words} x pitch words: {t} tokens in blocks of "
            f"shared_sf_block_m={block_m} are permuted within {num_rows} rows. Create it as "
            f"torch.empty(({words}, {num_rows}), dtype=torch.int32).T[:{t}]"
        )
    return scales.as_strided((num_rows, words), (1, pitch), scales.storage_offset()) if t else scales


def _refuse_mhc_overlap(function: str, p: MegaMhcProblem) -> None:
    """Outputs are written while inputs of other tokens are still to be read."""
    inputs = ("x", "residual", "shifted_prev_mix", "post_mix", "comb_res_mix", "fn", "mix_scales", "mix_bases")
    read = {name: getattr(p, name) for name in (*inputs, "rmsnorm_weight")}
    for name in ("new_residual", "new_prev_mix", "new_post_mix", "new_comb_res_mix", "y_bf16", "y_fp8"):
        written = getattr(p, name)
        if written is not None:
            validate.refuse_overlap(function, name, written, **read)
