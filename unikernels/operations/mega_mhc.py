"""The whole hyper-connection step between two sublayers: the problem and its definition. Cases: mega_mhc_cases.py.

The pre-norm GEMM alone is hc_prenorm.py; quantisation follows `per_token_cast_to_fp8`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..utils import per_token_cast_to_fp8
from .base import Operation, cases_in
from .hc_prenorm import round_to_tf32

#: Residual streams; the only number that exists.
NUM_STREAMS = 4
#: Columns per scale of the FP8 output.
GRAN_K = 32
#: Rows of the shared experts' scales are permuted within blocks of this many.
SHARED_ROW_BLOCK = 128


@dataclass(frozen=True, slots=True)
class MhcSettings:
    """Scalars of the step (formulas in `mega_mhc_reference`)."""

    hc_norm_eps: float
    hc_pre_eps: float
    hc_post_scale: float
    sinkhorn_eps: float
    num_sinkhorn_iters: int
    rmsnorm_eps: float
    rmsnorm_scale: float


@dataclass(frozen=True, slots=True)
class MegaMhcProblem:
    """New residual streams, new mixes, and the normalised input of the next sublayer.

    T tokens, H hidden, n = 4 streams; all contiguous but the scales.

    Attributes:
        x: [T, H] bf16, output of the sublayer.
        residual: [T, n, H] bf16, streams before it.
        shifted_prev_mix: [T, n, 1] fp32 to mix the streams with, or None to use the mix computed here.
        post_mix: [T, n, 1] fp32; comb_res_mix: [T, n, n] fp32, from stream i to stream j.
        fn: [n*(n+2), n*H] fp32, rounded to TF32; mix_scales: [3] fp32; mix_bases: [n*(n+2)] fp32.
        rmsnorm_weight: [H] bf16.
        settings: the scalars.
        new_residual, new_post_mix, new_comb_res_mix: outputs, like their inputs.
        new_prev_mix: output [T, n, 1] fp32, given exactly if shifted_prev_mix is.
        y_bf16: output [T, H], or None.
        y_fp8: output [T, H] e4m3, or None; quantised from the bf16 values, one scale per 32 columns, as
            `per_token_cast_to_fp8(y, True, 32, True)`.
        y_gemm_sf: output [T, H/128] int32, strides (1, pitch).
        y_routed_sf: output [T, H/128] int32, row-major.
        y_shared_sf: output [shared rows, H/128] int32, strides (1, pitch): all rows that tokens may go to, not the T
            rows of the caller's view; token t goes to row `shared_scale_rows(T, B)[t]`. Other rows keep their content.
        shared_sf_block_m: B above; 0 without y_shared_sf.
    """

    x: Tensor
    residual: Tensor
    shifted_prev_mix: Tensor | None
    post_mix: Tensor
    comb_res_mix: Tensor
    fn: Tensor
    mix_scales: Tensor
    mix_bases: Tensor
    rmsnorm_weight: Tensor
    settings: MhcSettings
    new_residual: Tensor
    new_prev_mix: Tensor | None
    new_post_mix: Tensor
    new_comb_res_mix: Tensor
    y_bf16: Tensor | None = None
    y_fp8: Tensor | None = None
    y_gemm_sf: Tensor | None = None
    y_routed_sf: Tensor | None = None
    y_shared_sf: Tensor | None = None
    shared_sf_block_m: int = 0


def num_shared_scale_rows(num_tokens: int, block_m: int) -> int:
    """Return how many rows the shared experts' scales span: ceil(T / B) blocks of align(B, 128) rows."""
    aligned_block = -(-block_m // SHARED_ROW_BLOCK) * SHARED_ROW_BLOCK
    return -(-num_tokens // block_m) * aligned_block


def shared_scale_rows(num_tokens: int, block_m: int, device: torch.device) -> Tensor:
    """Return the row of every token in the shared experts' scales, int64 [T].

    With i = t mod B: (t div B) * align(B, 128) + (i div 128) * 128 + (i mod 32) * 4 + (i mod 128) div 32, the order in
    which the scaled matrix instructions read 128 rows.
    """
    t = torch.arange(num_tokens, device=device)
    i = t % block_m
    aligned_block = -(-block_m // SHARED_ROW_BLOCK) * SHARED_ROW_BLOCK
    return t // block_m * aligned_block + i // 128 * 128 + i % 32 * 4 + i % 128 // 32


def write_quantised(problem: MegaMhcProblem, y: Tensor, rows: slice, shared_rows: Tensor | None) -> None:
    """Quantise bf16 y [count, H] of tokens `rows` into y_fp8 and whichever scale tensors are given."""
    assert problem.y_fp8 is not None
    problem.y_fp8[rows], words = per_token_cast_to_fp8(y, True, GRAN_K, True)
    for scales in (problem.y_gemm_sf, problem.y_routed_sf):
        if scales is not None:
            scales[rows] = words
    if problem.y_shared_sf is not None:
        assert shared_rows is not None
        problem.y_shared_sf[shared_rows[rows]] = words


def mega_mhc_reference(problem: MegaMhcProblem) -> None:
    """float64 between the rounding points: streams, mixed streams and y round to bf16, fn to TF32."""
    settings, n = problem.settings, NUM_STREAMS
    streams = problem.x.double().unsqueeze(1) * problem.post_mix.double()
    streams += torch.einsum("tij,tih->tjh", problem.comb_res_mix.double(), problem.residual.double())
    problem.new_residual.copy_(streams)
    streams = problem.new_residual.double()

    flat = streams.flatten(1)
    z = flat @ round_to_tf32(problem.fn).double().T
    z *= (flat.square().mean(-1, keepdim=True) + settings.hc_norm_eps).rsqrt()
    z = z * problem.mix_scales.double().repeat_interleave(torch.tensor([n, n, n * n], device=z.device))
    z += problem.mix_bases.double()
    pre = z[:, :n].sigmoid() + settings.hc_pre_eps
    problem.new_post_mix.copy_((z[:, n : 2 * n].sigmoid() * settings.hc_post_scale).unsqueeze(-1))

    eps = settings.sinkhorn_eps
    comb = z[:, 2 * n :].reshape(-1, n, n).softmax(-1) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(settings.num_sinkhorn_iters - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    problem.new_comb_res_mix.copy_(comb)

    mix = pre.unsqueeze(-1) if problem.shifted_prev_mix is None else problem.shifted_prev_mix.double()
    if problem.new_prev_mix is not None:
        problem.new_prev_mix.copy_(pre.unsqueeze(-1))
    u = (mix * streams).sum(1).bfloat16().double()
    y = u * (u.square().mean(-1, keepdim=True) + settings.rmsnorm_eps).rsqrt()
    y = (y * problem.rmsnorm_weight.double() * settings.rmsnorm_scale).bfloat16()
    if problem.y_bf16 is not None:
        problem.y_bf16.copy_(y)
    if problem.y_fp8 is not None:
        shared = None
        if problem.y_shared_sf is not None:
            shared = shared_scale_rows(y.shape[0], problem.shared_sf_block_m, y.device)
        write_quantised(problem, y, slice(None), shared)


MEGA_MHC = Operation(
    name="mega_mhc",
    problem=MegaMhcProblem,
    reference=mega_mhc_reference,
    cases=cases_in("mega_mhc_cases"),
    summary="hyper-connection step: new residual streams, Sinkhorn mixes, RMSNorm, optional FP8 output",
    functions=("mega_mhc",),
)
