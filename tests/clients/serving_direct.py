"""A caller of DeepGEMM in the manner of a serving engine that imports it at the top; knows nothing of unikernels.

Habits it shows: it switches itself off if the import fails, imports layout functions from the submodule, passes operand
pairs as tuples and almost everything by position, limits the SMs inside a context, and uses FP32 outputs.
"""

from contextlib import contextmanager

import torch

try:
    import deep_gemm
    from deep_gemm import fp8_paged_mqa_logits, get_paged_mqa_logits_metadata
    from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor

    ENABLED = True
except ImportError:
    ENABLED = False


@contextmanager
def limited_sms(num_sms):
    if num_sms is None:
        yield
        return
    before = deep_gemm.get_num_sms()
    deep_gemm.set_num_sms(num_sms)
    try:
        yield
    finally:
        deep_gemm.set_num_sms(before)


def start():
    deep_gemm.set_pdl(True)
    return deep_gemm.get_pdl()


def gemm(lhs, rhs, out):
    deep_gemm.fp8_gemm_nt(lhs, rhs, out)


def router_gemm(x, weight):
    """Scores in float32 of bfloat16 operands."""
    out = torch.empty(x.size(0), weight.size(0), dtype=torch.float32, device=x.device)
    deep_gemm.bf16_gemm_nt(x, weight, out)
    return out


def grouped_contiguous(lhs, rhs, out, m_indices):
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, out, m_indices)


def grouped_masked(lhs, rhs, out, masked_m, expected_m, recipe_a=None, recipe_b=None):
    deep_gemm.fp8_m_grouped_gemm_nt_masked(lhs, rhs, out, masked_m, expected_m, recipe_a=recipe_a, recipe_b=recipe_b)


def grouped_masked_bf16(lhs, rhs, out, masked_m, expected_m):
    deep_gemm.bf16_m_grouped_gemm_nt_masked(lhs, rhs, out, masked_m, expected_m)


def aligned_scales(sf):
    return get_mn_major_tma_aligned_tensor(sf)


def decode_logits(q, cache, weights, lengths, table, max_length):
    """Lengths arrive as [batch]; everything goes by position."""
    lengths = lengths.unsqueeze(-1)
    schedule = get_paged_mqa_logits_metadata(lengths, cache.size(1), deep_gemm.get_num_sms())
    return fp8_paged_mqa_logits(q, cache, weights, lengths, table, schedule, max_length, False)


def hyper_connection(x, fn, num_splits):
    out = torch.empty(num_splits, x.size(0), fn.size(0), dtype=torch.float32, device=x.device)
    squares = torch.empty(num_splits, x.size(0), dtype=torch.float32, device=x.device)
    deep_gemm.tf32_hc_prenorm_gemm(x, fn, out, squares, num_splits=num_splits)
    return out.sum(0), squares.sum(0)
