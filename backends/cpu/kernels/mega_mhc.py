"""The hyper-connection step on the CPU, in tiles of tokens that bound the memory; float32 between rounding points.

Only operations whose result for one token cannot depend on its place are used (see row_invariant.py): products on tiles
of fixed height or token by token, exactly rounded elementwise arithmetic, transcendentals on tiles of fixed size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unikernels.operations.hc_prenorm import round_to_tf32
from unikernels.operations.mega_mhc import (
    NUM_STREAMS,
    MegaMhcProblem,
    MhcSettings,
    shared_scale_rows,
    write_quantised,
)

from .row_invariant import padded_tile, row_sums_of_squares, row_tiles


def mega_mhc(problem: MegaMhcProblem) -> None:
    """Write all outputs, tile by tile; equal tokens give equal bits."""
    num_tokens = problem.x.shape[0]
    fn = round_to_tf32(problem.fn)
    shared_rows = None
    if problem.y_shared_sf is not None:
        shared_rows = shared_scale_rows(num_tokens, problem.shared_sf_block_m, problem.x.device)
    for rows in row_tiles(num_tokens):
        count = rows.stop - rows.start
        streams = _new_streams(problem, rows)
        pre, post, comb = _mixes(problem, streams, fn)
        problem.new_post_mix[rows] = post[:count].unsqueeze(-1)
        problem.new_comb_res_mix[rows] = comb[:count]
        if problem.shifted_prev_mix is None:
            mix = pre[:count]
        else:
            assert problem.new_prev_mix is not None
            problem.new_prev_mix[rows] = pre[:count].unsqueeze(-1)
            mix = problem.shifted_prev_mix[rows].squeeze(-1)
        y = _normalised(problem, streams, mix)
        if problem.y_bf16 is not None:
            problem.y_bf16[rows] = y
        if problem.y_fp8 is not None:
            write_quantised(problem, y, rows, shared_rows)


def _new_streams(problem: MegaMhcProblem, rows: slice) -> Tensor:
    """Write the new residual streams and return them as float32 [count, n, H], rounded to bf16."""
    residual = problem.residual[rows]
    count, _, hidden = residual.shape
    # The sublayer's output is one more stream to mix in.
    old_streams = torch.empty((count, NUM_STREAMS + 1, hidden))
    old_streams[:, :NUM_STREAMS] = residual
    old_streams[:, NUM_STREAMS] = problem.x[rows]
    streams = torch.bmm(torch.cat([problem.comb_res_mix[rows].mT, problem.post_mix[rows]], dim=2), old_streams)
    problem.new_residual[rows] = streams
    return streams.copy_(problem.new_residual[rows])


def _mixes(problem: MegaMhcProblem, streams: Tensor, fn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return pre [tile, n], post [tile, n] and comb [tile, n, n]; rows past the tokens are meaningless."""
    settings, n = problem.settings, NUM_STREAMS
    flat = streams.flatten(1)
    z = torch.mm(padded_tile(flat), fn.T)
    mean_square = padded_tile((row_sums_of_squares(flat) / flat.shape[1]).unsqueeze(1))
    z *= 1 / (mean_square + settings.hc_norm_eps).sqrt()
    scale_pre, scale_post, scale_comb = problem.mix_scales
    bases = problem.mix_bases
    pre = (z[:, :n] * scale_pre + bases[:n]).sigmoid_() + settings.hc_pre_eps
    post = (z[:, n : 2 * n] * scale_post + bases[n : 2 * n]).sigmoid_() * settings.hc_post_scale
    comb = (z[:, 2 * n :] * scale_comb + bases[2 * n :]).view(-1, n, n)
    return pre, post, _sinkhorn(comb, settings)


def _sinkhorn(logits: Tensor, settings: MhcSettings) -> Tensor:
    """Alternate row and column normalisation of softmax(logits) [tile, n, n]."""
    eps = settings.sinkhorn_eps
    # Streams first: every step is then elementwise on contiguous [n, tile] slices, and sums have a fixed order.
    comb = (logits - logits.amax(2, keepdim=True)).exp_().permute(1, 2, 0).contiguous()
    comb = comb / _sum_of_four(comb, 1) + eps
    comb = comb / (_sum_of_four(comb, 0) + eps)
    for _ in range(settings.num_sinkhorn_iters - 1):
        comb = comb / (_sum_of_four(comb, 1) + eps)
        comb = comb / (_sum_of_four(comb, 0) + eps)
    return comb.permute(2, 0, 1)


def _sum_of_four(x: Tensor, dim: int) -> Tensor:
    first, second, third, fourth = x.unbind(dim)
    return ((first + second) + (third + fourth)).unsqueeze(dim)


def _normalised(problem: MegaMhcProblem, streams: Tensor, mix: Tensor) -> Tensor:
    """Return y bf16 [count, H]: the mixed streams after RMSNorm."""
    settings = problem.settings
    u = torch.bmm(mix.unsqueeze(1), streams).squeeze(1).bfloat16().float()
    mean_square = row_sums_of_squares(u).unsqueeze(1) / u.shape[1]
    u *= 1 / (mean_square + settings.rmsnorm_eps).sqrt()
    u *= problem.rmsnorm_weight.float() * settings.rmsnorm_scale
    return u.bfloat16()
